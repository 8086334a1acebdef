"""The handlers of the Python workers in the tests."""

import decimal
import json
import os
import subprocess
import sys
import time

import ichido

#: Ignores SIGTERM, in its own session.
AWAY = "trap '' TERM; while :; do sleep 0.05; done"


def note(run, **more):
    """Writes each line with one call, so that the lines of many processes do not mix."""
    line = {'job': run.job_id, 'attempt': run.attempt, 'at': time.monotonic(), 'pid': os.getpid(), **more}
    ledger = os.open(os.environ['LEDGER'], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    os.write(ledger, json.dumps(line).encode() + b'\n')
    os.close(ledger)


def tick(run):
    """Notes repeatedly that it is working. With `stubborn` it ignores stop orders."""
    until = time.monotonic() + run.payload['seconds']
    while time.monotonic() < until:
        try:
            note(run)
            time.sleep(0.01)
        except ichido.Stopped:
            if not run.payload.get('stubborn'):
                raise
    return {'attempt': run.attempt}


def talk(run):
    print('to stdout', run.payload)
    print('to stderr: \u4e00\u5ea6', file=sys.stderr)
    run.progress({'percent': 50})
    run.publish('vision', 3, {'found': True})
    names = ('ICHIDO_JOB_ID', 'ICHIDO_ATTEMPT', 'ICHIDO_LEASE_ID', 'ICHIDO_SLOT')
    return {'attempt': run.attempt, 'environment': [os.environ[name] for name in names]}


def hang(run):
    """The first attempt ends only by force, with a process that has left its group. The next attempt ends by itself."""
    if os.path.exists(os.environ['LEDGER']):
        return {'last_progress': run.last_progress}
    run.progress({'done': 7})
    away = subprocess.Popen(['sh', '-c', AWAY], start_new_session=True)
    note(run, away=away.pid)
    while True:
        try:
            time.sleep(60)
        except ichido.Stopped:
            pass


def busy(run):
    """Holds the interpreter's lock, so that no other thread of its process runs."""
    note(run)
    return sum(range(10**12))


def wait(run):
    note(run)
    try:
        time.sleep(60)
    except ichido.Stopped as stopped:
        print('stopped because of', stopped.reason, run.stopping.is_set())
        raise


def fail(run):
    how = run.payload
    if how == 'fatal':
        raise ichido.Fatal('BAD_IMAGE', 'There is no image')
    if how == 'hostile':
        raise ichido.Fatal('BAD\x1b]0;x\x07', 'no \x9b31m\u202eegami')
    if how == 'error':
        raise LookupError('not there: \0 \ud800')
    if how == 'exit':
        sys.exit(3)
    if how == 'signal':
        os.kill(os.getpid(), 9)
    if how == 'not json':
        return {'when': time}
    if how == 'too large':
        return 'x' * 17_000_000
    return how


def spend(run):
    """Reports its cost: first a high one, then the one in the payload."""
    run.cost(40)
    run.cost(float('nan') if run.payload == 'nan' else decimal.Decimal(run.payload))


def folder(run):
    """Leaves files in its current folder, and returns what it found there."""
    found = sorted(os.listdir('.'))
    with open('scratch', 'x') as scratch:
        scratch.write('x')
    os.mkdir('outputs/folder')
    for name in run.payload['outputs']:
        with open(f'outputs/{name}', 'x') as output:
            output.write(''.join(open(name).read() for name in found if name != 'outputs'))
    if run.payload.get('fail'):
        raise LookupError('not there')
    return {'found': found, 'folder': os.getcwd(), 'agent': os.environ['ICHIDO_AGENT_DIR']}


def trick(run):
    """Runs a shell command that replaces the files that the worker reads."""
    subprocess.run(['sh', '-c', run.payload], check=True)


def surroundings(run):
    """Returns the variables that it and its subprocesses inherit."""
    printed = subprocess.run(['env', '-0'], check=True, capture_output=True, text=True).stdout
    return [sorted(os.environ), sorted(line.split('=')[0] for line in printed.split('\0') if line)]
