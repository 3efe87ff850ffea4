-- How many rows have all marks.
--
-- KEYS[1] meta   KEYS[2] terms (see rows.lua)
-- ARGV[1] id of the store   ARGV[2] the place to begin below, or empty   ARGV[3] how many entries to walk, then the marks
--
-- Answers the number and the last place that was visited (nil: the end was reached).

if redis.call('HGET', KEYS[1], 'store') ~= ARGV[1] then
  return redis.error_reply('EMPTIED the store is gone')
end
local TOP = string.rep('\255', 9) -- Above every sort and key.
local along, rarest
for index = 4, #ARGV do
  local size = redis.call('ZLEXCOUNT', KEYS[2], '[' .. ARGV[index], '(' .. ARGV[index] .. TOP)
  if not rarest or size < rarest then
    along, rarest = ARGV[index], size
  end
end
if #ARGV == 4 then
  return { rarest, false }
end
local steps, count = tonumber(ARGV[3]), 0
local to = ARGV[2] == '' and '(' .. along .. TOP or '(' .. along .. ARGV[2]
local members = redis.call('ZREVRANGEBYLEX', KEYS[2], to, '[' .. along, 'LIMIT', 0, steps)
for _, member in ipairs(members) do
  local fits = true
  for index = 4, #ARGV do
    if ARGV[index] ~= along and not redis.call('ZSCORE', KEYS[2], ARGV[index] .. string.sub(member, 9)) then
      fits = false
      break
    end
  end
  count = count + (fits and 1 or 0)
end
return { count, #members == steps and string.sub(members[#members], 9) or false }
