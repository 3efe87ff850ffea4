-- Rows that have all marks, newest first: along the rarest mark, as far as one call may walk.
--
-- KEYS[1] meta   KEYS[2] rows   KEYS[3] terms (see rows.lua)
-- ARGV[1] id of the store   ARGV[2] tenant and kind   ARGV[3] the place to begin below, or empty
-- ARGV[4] how many rows     ARGV[5] how many entries to walk, then the marks
--
-- Answers the last place that was visited (nil: the end was reached), then place and row of each.

if redis.call('HGET', KEYS[1], 'store') ~= ARGV[1] then
  return redis.error_reply('EMPTIED the store is gone')
end
local TOP = string.rep('\255', 9) -- Above every sort and key.
local wanted, steps, along, rarest = tonumber(ARGV[4]), tonumber(ARGV[5]), nil, nil
for index = 6, #ARGV do
  local size = redis.call('ZLEXCOUNT', KEYS[3], '[' .. ARGV[index], '(' .. ARGV[index] .. TOP)
  if not rarest or size < rarest then
    along, rarest = ARGV[index], size
  end
end
local answer, found = { false }, 0
local to = ARGV[3] == '' and '(' .. along .. TOP or '(' .. along .. ARGV[3]
while steps > 0 do
  local size = math.min(steps, #ARGV > 6 and 500 or wanted - found + 1)
  local members = redis.call('ZREVRANGEBYLEX', KEYS[3], to, '[' .. along, 'LIMIT', 0, size)
  for _, member in ipairs(members) do
    local place = string.sub(member, 9)
    if found == wanted then
      return answer
    end
    local fits = true
    for index = 6, #ARGV do
      if ARGV[index] ~= along and not redis.call('ZSCORE', KEYS[3], ARGV[index] .. place) then
        fits = false
        break
      end
    end
    local row = fits and redis.call('HGET', KEYS[2], ARGV[2] .. string.sub(place, 9))
    if row then
      found = found + 1
      answer[#answer + 1], answer[#answer + 2] = place, row
    end
    answer[1] = place
  end
  if #members < size then
    answer[1] = false
    return answer
  end
  steps = steps - size
  to = '(' .. members[#members]
end
return answer
