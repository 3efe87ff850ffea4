-- Send live frames of a stream to who follows it.
--
-- KEYS[1] the records of the stream
-- ARGV[1] channel   ARGV[2] process   ARGV[3] length and name of the stream, then length and body of each frame
--
-- Answers the version of the stream.

local version = redis.call('LLEN', KEYS[1])
redis.call('PUBLISH', ARGV[1], ARGV[2] .. struct.pack('>I8', version) .. ARGV[3])
return version
