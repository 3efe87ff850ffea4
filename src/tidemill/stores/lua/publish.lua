-- Send live frames of a stream to who follows it.
--
-- KEYS[1] the records of the stream
-- ARGV[1] channel   ARGV[2] process   ARGV[3] the frames
--
-- Answers the version of the stream.

local version = redis.call('LLEN', KEYS[1])
if ARGV[3] ~= '' then
  redis.call('PUBLISH', ARGV[1], ARGV[2] .. struct.pack('>I8', version) .. ARGV[3])
end
return version
