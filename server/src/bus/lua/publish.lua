-- S4's layer 1: puts events of one stream into it, each once, and keeps the state of the highest cursor.
--
-- KEYS[1]              stream, e.g. scan:events:0
-- KEYS[2]              domains of the shard: a sorted set, by when they were last used
-- KEYS[2 + j]          state of the j-th job, e.g. scan:state:<job_id>
-- KEYS[2 + jobs + i]   mark of the i-th event: published:<job_id>:<stage>:<seq>
--
-- ARGV[1]              domain
-- ARGV[2]              now, in ms
-- ARGV[3]              how long marks are kept, in ms
-- ARGV[4]              how long a stream that nobody adds to is kept, in ms
-- ARGV[5]              about how many entries the stream keeps
-- ARGV[6]              how many jobs the events are of
-- ARGV[3j + 4 … 6]     of the j-th job: the place among the events of its highest cursor, that cursor, and how long the event
--                      is to be kept as the state, in ms; 0: it is too old for that
-- ARGV[6 + 3 jobs + i] the i-th event as JSON; it begins with its cursor
--
-- Result: for each event 1 when it was added, 0 when it had been before, -1 when it was skipped. After those the keys that
-- were skipped: they hold something that is not Ichido's, and are left as they are.

local jobs = tonumber(ARGV[6])
local before_marks, before_events = 2 + jobs, 6 + 3 * jobs

-- S4's programs begin streams without telling anybody: such a stream has an event among its last ten entries. `isEvent` in
-- event-json.ts says the same.
local function holds_events()
  for _, entry in ipairs(redis.call('XREVRANGE', KEYS[1], '+', '-', 'COUNT', 10)) do
    local name, data = entry[2][1], entry[2][2]
    local has = function(text)
      return string.find(data, text, 1, true)
    end
    if name == 'data' and has('"job_id":') and has('"stage":') and has('"seq":') then
      return true
    end
  end
  return false
end

-- Both answer with a table when the key is of another type.
local length, known = redis.pcall('XLEN', KEYS[1]), redis.pcall('ZSCORE', KEYS[2], ARGV[1])
local skipped
if type(known) == 'table' then
  skipped = KEYS[2]
elseif type(length) == 'table' or (length > 0 and not known and not holds_events()) then
  skipped = KEYS[1]
end

local added, any = {}, false
if skipped then
  for i = 1, #KEYS - before_marks do
    added[i] = -1
  end
  added[#added + 1] = skipped
  return added
end

for i = 1, #KEYS - before_marks do
  local mark = KEYS[before_marks + i]
  if redis.call('SET', mark, '1', 'NX', 'PX', ARGV[3]) then
    local answer = redis.pcall('XADD', KEYS[1], '*', 'data', ARGV[before_events + i])
    if type(answer) == 'table' and answer.err then
      -- It is not in the stream, so it must not be believed to be: whoever runs this again adds it.
      redis.call('DEL', mark)
      return answer
    end
    added[i], any = 1, true
  else
    added[i] = 0
  end
end

for j = 1, jobs do
  local state, place, cursor, ms = KEYS[2 + j], ARGV[3 * j + 4], tonumber(ARGV[3 * j + 5]), ARGV[3 * j + 6]
  local text = redis.pcall('GETRANGE', state, 0, 40)
  -- A late event must not take the place of a newer state.
  local kept = type(text) == 'string' and tonumber(string.match(text, '^{"cursor":(%d+)') or '0')
  if not kept then
    added[#added + 1] = state
  elseif cursor > kept and ms ~= '0' then
    redis.call('SET', state, ARGV[before_events + place], 'PX', ms)
  elseif cursor > kept then
    -- What is older than an event that is too old misleads; what is missing sends to the store.
    redis.call('DEL', state)
  end
end

if any then
  redis.call('XTRIM', KEYS[1], 'MAXLEN', '~', ARGV[5])
  -- A stream that had entries and no time to live was begun by another program, and stays for as long as that one likes.
  if length == 0 or redis.call('PTTL', KEYS[1]) > 0 then
    redis.call('PEXPIRE', KEYS[1], ARGV[4])
  end
  redis.call('ZADD', KEYS[2], ARGV[2], ARGV[1])
end
return added
