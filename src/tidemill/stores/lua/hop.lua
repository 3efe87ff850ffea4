-- The most frequent commit in few steps: one ack of a job without caps, records, and perhaps one new job that is kept.
--
-- include head
--
-- KEYS[2] jobs   KEYS[3] due (see jobs.lua)   KEYS[4] records   KEYS[5] rest of the stream (see commit.lua)
-- ARGV[7] expected version, above 0   ARGV[8] name of the stream
-- ARGV[9] key of the job, ARGV[10] token   ARGV[11] key of the new job, ARGV[12] its fixed part; empty for none
-- ARGV[13] lease in ms   ARGV[14] owner, then the records
--
-- Answers as commit.lua does; nil if it does not apply or is refused: then nothing was written.

if answered then
  return answered
end
local acked = 'j' .. ARGV[9]
local id = call('HGET', KEYS[5], acked)
local stored = id and call('HGET', KEYS[2], id)
if not stored then
  return false
end
local state, _, held, _, _, owner = unpack_('>BI8I8I8I4H', stored)
-- Behind the owner and the priority: the lane, then the length of the digest of its caps.
local at = 33 + owner
local lane = unpack_('>H', stored, at)
local version = tonumber(ARGV[7])
if
  state ~= 2
  or held ~= tonumber(ARGV[10])
  or string.byte(stored, at + 2 + lane) ~= 0
  or call('LLEN', KEYS[4]) ~= version
then
  return false
end
local fixed = ARGV[12]
version = version + #ARGV - 14
local answer = { now, 0, 0, version, 0 }
if fixed ~= '' then
  order = order + 1
  if call('HSETNX', KEYS[5], 'j' .. ARGV[11], order) == 0 then
    return false
  end
  next_token()
  local expires, name = now + tonumber(ARGV[13]), ARGV[14]
  call('HSET', KEYS[2], order, pack_('>BI8I8I8I4Hc0', 2, now, token, expires, 0, #name, name) .. fixed)
  call('ZADD', KEYS[3], expires, order)
  answer = { now, 0, 0, version, 1, 1, token }
end
call('RPUSH', KEYS[4], unpack(ARGV, 15))
call('HDEL', KEYS[5], acked)
call('HDEL', KEYS[2], id)
call('ZREM', KEYS[3], id)
tell(ARGV[8])
remember(answer)
return answer
