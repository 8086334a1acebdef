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

local count = (#KEYS - 2) / 2
local marks = {}
for i = 1, count do
  marks[i] = KEYS[2 + 2 * i]
end
local marked = redis.call('MGET', unpack(marks))

local added, latest, news = {}, {}, {}
for i = 1, count do
  local state, mark = KEYS[1 + 2 * i], marks[i]
  local event, cursor, state_ms = ARGV[3 + 3 * i], tonumber(ARGV[4 + 3 * i]), tonumber(ARGV[5 + 3 * i])
  if marked[i] or news[mark] then
    added[i] = 0
  else
    redis.call('XADD', KEYS[1], '*', 'data', event)
    if cursor > (latest[state] and latest[state].cursor or 0) then
      latest[state] = { cursor = cursor, event = event, ms = state_ms }
    end
    news[mark] = true
    added[i] = 1
  end
end

for state, last in pairs(latest) do
  -- A late event must not take the place of a newer state.
  local kept = tonumber(string.match(redis.call('GETRANGE', state, 0, 40), '^{"cursor":(%d+)') or '0')
  if last.cursor > kept and last.ms > 0 then
    redis.call('SET', state, last.event, 'PX', last.ms)
  elseif last.cursor > kept then
    -- What is older than an event that is too old misleads; what is missing sends to the store.
    redis.call('DEL', state)
  end
end

-- Last, as in S4: a script that fails half-way is run again, not believed.
for mark in pairs(news) do
  redis.call('SET', mark, '1', 'PX', ARGV[3])
end

if next(news) then
  redis.call('XTRIM', KEYS[1], 'MAXLEN', '~', ARGV[5])
  redis.call('PEXPIRE', KEYS[1], ARGV[4])
  redis.call('ZADD', KEYS[2], ARGV[2], ARGV[1])
end
return added
