-- Read streams.
--
-- KEYS[1] meta, then two of each stream: its records (list) and its rest (hash)
-- ARGV[1] id of the store   ARGV[2] 1: from snapshots   ARGV[3] how many records of each, -1: all, then of each stream
-- the version to read after
--
-- Answers of each stream its version, the version before the first record, the snapshot or nil, the records.

if redis.call('HGET', KEYS[1], 'store') ~= ARGV[1] then
  return redis.error_reply('EMPTIED the store is gone')
end
local limit, answer = tonumber(ARGV[3]), {}
for number = 1, #ARGV - 3 do
  local records, rest, after = KEYS[2 * number], KEYS[2 * number + 1], tonumber(ARGV[3 + number])
  local version, snapshot = redis.call('LLEN', records), false
  if ARGV[2] == '1' then
    local at = tonumber(redis.call('HGET', rest, 'v') or -1)
    if at > after then
      after, snapshot = at, redis.call('HGET', rest, 's')
    end
  end
  local found = {}
  if limit ~= 0 and after < version then
    found = redis.call('LRANGE', records, after, limit < 0 and -1 or after + limit - 1)
  end
  answer[number] = { version, after, snapshot, found }
end
return answer
