-- S4's layer 1: adds events to their stream, each once, and keeps the state of the highest cursor.
--
-- KEYS[1]              stream, e.g. scan:events:0
-- KEYS[2]              domains of the shard: a sorted set, by the time of their last use
-- KEYS[2 + j]          state of the j-th job, e.g. scan:state:<job_id>
-- KEYS[2 + jobs + i]   mark of the i-th event: published:<job_id>:<stage>:<seq>
--
-- ARGV[1]              domain
-- ARGV[2]              now, in ms
-- ARGV[3]              how long marks are kept, in ms
-- ARGV[4]              how long an idle stream is kept, in ms
-- ARGV[5]              about how many entries the stream keeps
-- ARGV[6]              the number of jobs
-- ARGV[3j + 4 … 6]     for the j-th job: the index of the event with its highest cursor, that cursor, and how long the event
--                      is kept as the state, in ms; 0: it is too old to be the state
-- ARGV[6 + 3 jobs + i] the i-th event as JSON; it begins with its cursor
--
-- Result: for each event 1 if it was added, 0 if it was there before, -1 if it was skipped. Then the skipped keys: they
-- hold data of another program, and are left unchanged.

local jobs = tonumber(ARGV[6])
local before_marks, before_events = 2 + jobs, 6 + 3 * jobs

-- S4's programs do not announce their streams: such a stream has an event among its last ten entries. `isEvent` in
-- event-json.ts is the same test.
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

-- Both return a table if the key is of another type.
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
      -- The event is not in the stream, so its mark is removed: the next call adds it.
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
  -- A late event must not replace a newer state.
  local kept = type(text) == 'string' and tonumber(string.match(text, '^{"cursor":(%d+)') or '0')
  if not kept then
    added[#added + 1] = state
  elseif cursor > kept and ms ~= '0' then
    redis.call('SET', state, ARGV[before_events + place], 'PX', ms)
  elseif cursor > kept then
    -- A state older than this event would mislead. Without a state, readers ask the store.
    redis.call('DEL', state)
  end
end

if any then
  redis.call('XTRIM', KEYS[1], 'MAXLEN', '~', ARGV[5])
  -- A stream that had entries and no expiry belongs to another program, which decides how long it stays.
  if length == 0 or redis.call('PTTL', KEYS[1]) > 0 then
    redis.call('PEXPIRE', KEYS[1], ARGV[4])
  end
  redis.call('ZADD', KEYS[2], ARGV[2], ARGV[1])
end
return added
