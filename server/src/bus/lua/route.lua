-- S4's layers 2 and 3: each event updates its job's state once, the higher cursor stays, and the same script tells the
-- gateways of it.
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
-- ARGV[6 + 4i] how long it is to be kept as the state, in ms; 0: it is too old for that
--
-- Result: how many events were new. Of those the channel hears in one message, a line each: job, blank, cursor.

local told = {}

for i = 0, (#KEYS - 1) / 2 - 1 do
  local state, mark = KEYS[2 + 2 * i], KEYS[3 + 2 * i]
  local event, cursor, job = ARGV[3 + 4 * i], tonumber(ARGV[4 + 4 * i]), ARGV[5 + 4 * i]
  local state_ms = tonumber(ARGV[6 + 4 * i])
  if redis.call('EXISTS', mark) == 0 then
    local kept = tonumber(string.match(redis.call('GETRANGE', state, 0, 40), '^{"cursor":(%d+)') or '0')
    if state_ms > 0 and cursor > kept then
      redis.call('SET', state, event, 'PX', state_ms)
    end
    redis.call('SET', mark, '1', 'PX', ARGV[2])
    told[#told + 1] = job .. ' ' .. ARGV[4 + 4 * i]
  end
end

if #told > 0 then
  redis.call(ARGV[1], KEYS[1], table.concat(told, '\n'))
end
return #told
