import { Argument, type Command } from 'commander'
import { outText } from '../output/terminal.ts'

const SCRIPTS: Readonly<Record<string, (program: Command) => string>> = {
  bash: bashScript,
  zsh: zshScript,
  fish: fishScript,
}

export function addCompletion(program: Command): void {
  program
    .command('completion')
    .description('print a script that completes commands and flags; source it in your shell')
    .addArgument(new Argument('<shell>').choices(Object.keys(SCRIPTS)))
    .action((shell: string) => outText(SCRIPTS[shell]?.(program) ?? ''))
}

interface Place {
  /** The words of the command, each with a space before it. */
  path: string
  /** The words that can follow. */
  words: readonly string[]
}

/** Every command with the words that can follow it, so that the script has what the program has. */
function placesOf(command: Command, path = ''): Place[] {
  const inner = command.commands.filter((one) => !isHidden(one))
  const flags = command.options.flatMap(({ long }) => (long == null ? [] : [long]))
  const choices = command.registeredArguments.flatMap(({ argChoices = [] }) => argChoices)
  const words = [...inner.map((one) => one.name()), ...choices, ...flags, '--help']
  return [{ path, words }, ...inner.flatMap((one) => placesOf(one, `${path} ${one.name()}`))]
}

const isHidden = (command: Command) => '_hidden' in command && command._hidden === true

/** The commands, and the words that can follow each, as the scripts of all shells write them. */
function tableOf(program: Command): { known: string[]; cases: [string, string][] } {
  const places = placesOf(program)
  return {
    known: places.filter(({ path }) => path !== '').map(({ path }) => `'${path}'`),
    cases: places.map(({ path, words }) => [path, words.join(' ')]),
  }
}

function bashScript(program: Command): string {
  const { known, cases } = tableOf(program)
  return `# Completion of ichido for bash: source <(ichido completion bash)
_ichido() {
  local path='' words='' word
  for word in "\${COMP_WORDS[@]:1:COMP_CWORD-1}"; do
    case "$path $word" in
      ${known.join('|')}) path="$path $word" ;;
    esac
  done
  case "$path" in
${cases.map(([path, words]) => `    '${path}') words='${words}' ;;`).join('\n')}
  esac
  COMPREPLY=($(compgen -W "$words" -- "\${COMP_WORDS[COMP_CWORD]}"))
}
complete -o default -F _ichido ichido
`
}

function zshScript(program: Command): string {
  const { known, cases } = tableOf(program)
  return `#compdef ichido
# Completion of ichido for zsh: source <(ichido completion zsh)
_ichido() {
  local where='' line='' word
  for word in "\${(@)words[2,CURRENT-1]}"; do
    case "$where $word" in
      ${known.join('|')}) where="$where $word" ;;
    esac
  done
  case "$where" in
${cases.map(([path, words]) => `    '${path}') line='${words}' ;;`).join('\n')}
  esac
  compadd -- \${=line} || _files
}
compdef _ichido ichido
`
}

function fishScript(program: Command): string {
  const { known, cases } = tableOf(program)
  return `# Completion of ichido for fish: ichido completion fish | source
function __ichido_words
  set -l where ''
  for word in (commandline -opc)[2..-1]
    switch "$where $word"
      case ${known.join(' ')}
        set where "$where $word"
    end
  end
  switch "$where"
${cases.map(([path, words]) => `    case '${path}'\n      string split ' ' -- '${words}'`).join('\n')}
  end
end
complete -c ichido -a '(__ichido_words)'
`
}
