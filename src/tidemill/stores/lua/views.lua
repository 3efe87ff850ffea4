-- Read the jobs of a stream.
--
-- KEYS[1] meta   KEYS[2] jobs   KEYS[3] the rest of the stream (see commit.lua)
-- ARGV[1] id of the store
--
-- Answers the jobs as they are stored (see jobs.lua).

if redis.call('HGET', KEYS[1], 'store') ~= ARGV[1] then
  return redis.error_reply('EMPTIED the store is gone')
end
local answer = {}
for _, key in ipairs(redis.call('HKEYS', KEYS[3])) do
  if string.sub(key, 1, 1) == 'j' then
    answer[#answer + 1] = redis.call('HGET', KEYS[2], redis.call('HGET', KEYS[3], key))
  end
end
return answer
