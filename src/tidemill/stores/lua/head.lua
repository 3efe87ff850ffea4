-- What every call that writes begins with: the store is there, and the call is executed once.
--
-- KEYS[1] meta  hash: `store` (its id), `token` and `order` (counters), `partitions`, `format`, and of each session the
--               time and number of its last call with the answer
--
-- ARGV[1] the id of the store        ARGV[2] the time in ms, or empty for the server's
-- ARGV[3] the prefix of channels     ARGV[4] the process, 12 characters, then + if it hears its own messages
-- ARGV[5] the session, empty for none: its calls are executed once, however often they are sent
-- ARGV[6] the number of the call, which only grows

local call, pack_, unpack_, sub = redis.call, struct.pack, struct.unpack, string.sub
local META, session, batch = KEYS[1], ARGV[5], tonumber(ARGV[6])
local meta = call('HMGET', META, 'store', 'token', 'order', session)
if meta[1] ~= ARGV[1] then
  return redis.error_reply('EMPTIED the store is gone')
end
local answered
if meta[4] then
  local _, last = unpack_('>I8I8', meta[4])
  if last > batch then
    return redis.error_reply('STALE a later call has come before')
  elseif last == batch then
    answered = cmsgpack.unpack(sub(meta[4], 17))
  end
end
local token, order = tonumber(meta[2] or 0), tonumber(meta[3] or 0)
local now = tonumber(ARGV[2])
if not now then
  local time = call('TIME')
  now = time[1] * 1000 + math.floor(time[2] / 1000)
end

-- Tokens follow the clock, so that a server that has lost its last moments does not give out a token twice.
local function next_token()
  token = math.max(token + 1, now * 2048)
  return token
end

-- Tell other processes which streams have new records.
local function tell(names)
  local own = #ARGV[4] - 12
  if call('PUBSUB', 'NUMSUB', ARGV[3] .. 'records')[2] > own then
    call('PUBLISH', ARGV[3] .. 'records', sub(ARGV[4], 1, 12) .. names)
  end
end

local function remember(answer)
  local stored = pack_('>I8I8', now, batch) .. cmsgpack.pack(answer)
  call('HSET', META, 'token', token, 'order', order, session, stored)
end
