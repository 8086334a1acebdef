-- S4's layer 1: puts events of one stream into it, each once, and keeps the state of the highest cursor.
--
-- KEYS[1]      stream, e.g. scan:events:0
-- KEYS[2]      domains of the shard: a sorted set, by when they were last used
-- KEYS[3 + 2i] state of the i-th event's job, e.g. scan:state:<job_id>
-- KEYS[4 + 2i] mark of the i-th event: published:<job_id>:<stage>:<seq>
--
-- ARGV[1]      domain
-- ARGV[2]      now, in ms
-- ARGV[3]      how long marks are kept, in ms
-- ARGV[4]      how long a stream that nobody adds to is kept, in ms
-- ARGV[5]      about how many entries the stream keeps
-- ARGV[6 + 3i] the i-th event as JSON; it begins with its cursor
-- ARGV[7 + 3i] its cursor
-- ARGV[8 + 3i] how long it is to be kept as the state, in ms; 0: it is too old for that
--
-- Result: for each event 1 when it was added, 0 when it had been before.

local added = {}
local any = false

for i = 0, (#KEYS - 2) / 2 - 1 do
  local state, mark = KEYS[3 + 2 * i], KEYS[4 + 2 * i]
  local event, cursor, state_ms = ARGV[6 + 3 * i], tonumber(ARGV[7 + 3 * i]), tonumber(ARGV[8 + 3 * i])
  if redis.call('EXISTS', mark) == 0 then
    redis.call('XADD', KEYS[1], 'MAXLEN', '~', ARGV[5], '*', 'data', event)
    -- A late event must not take the place of a newer state.
    local kept = tonumber(string.match(redis.call('GETRANGE', state, 0, 40), '^{"cursor":(%d+)') or '0')
    if state_ms > 0 and cursor > kept then
      redis.call('SET', state, event, 'PX', state_ms)
    end
    -- Last, as in S4: a script that fails half-way is run again, not believed.
    redis.call('SET', mark, '1', 'PX', ARGV[3])
    added[i + 1] = 1
    any = true
  else
    added[i + 1] = 0
  end
end

if any then
  redis.call('PEXPIRE', KEYS[1], ARGV[4])
  redis.call('ZADD', KEYS[2], ARGV[2], ARGV[1])
end
return added
