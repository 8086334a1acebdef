-- S4's layers 2 and 3: each event updates its job's state once, the higher cursor stays, and the same script notifies the
-- gateways.
--
-- KEYS[1]      channel of the shard
-- KEYS[2 + 2i] state of the i-th event's job, e.g. scan:state:<job_id>
-- KEYS[3 + 2i] mark of the i-th event: router:published:<job_id>:<stage>:<seq>
--
-- ARGV[1]      PUBLISH, or in a cluster SPUBLISH
-- ARGV[2]      how long marks are kept, in ms
-- ARGV[3 + 4i] the i-th event as JSON; it begins with its cursor
-- ARGV[4 + 4i] its cursor
-- ARGV[5 + 4i] its job
-- ARGV[6 + 4i] how long it is kept as the state, in ms; 0: it is too old to be the state
--
-- Result: the number of new events, then the skipped states: those keys hold data of another program, and are left
-- unchanged. The channel gets one message with a line for each new event: job, blank, cursor.

local count = (#KEYS - 1) / 2
local marks = {}
for i = 1, count do
  marks[i] = KEYS[1 + 2 * i]
end
local marked = redis.call('MGET', unpack(marks))

local told, latest, news = {}, {}, {}
for i = 1, count do
  local state, mark = KEYS[2 * i], marks[i]
  local event, cursor, job = ARGV[4 * i - 1], tonumber(ARGV[4 * i]), ARGV[4 * i + 1]
  local state_ms = tonumber(ARGV[4 * i + 2])
  if not marked[i] and not news[mark] then
    if cursor > (latest[state] and latest[state].cursor or 0) then
      latest[state] = { cursor = cursor, event = event, ms = state_ms }
    end
    news[mark] = true
    told[#told + 1] = job .. ' ' .. ARGV[4 * i]
  end
end

local result = { #told }
for state, last in pairs(latest) do
  local text = redis.pcall('GETRANGE', state, 0, 40)
  local kept = type(text) == 'string' and tonumber(string.match(text, '^{"cursor":(%d+)') or '0')
  if not kept then
    result[#result + 1] = state
  elseif last.cursor > kept and last.ms > 0 then
    redis.call('SET', state, last.event, 'PX', last.ms)
  elseif last.cursor > kept then
    -- A state older than this event would mislead. Without a state, readers ask the store.
    redis.call('DEL', state)
  end
end
for mark in pairs(news) do
  redis.call('SET', mark, '1', 'PX', ARGV[2])
end

if #told > 0 then
  redis.call(ARGV[1], KEYS[1], table.concat(told, '\n'))
end
return result
