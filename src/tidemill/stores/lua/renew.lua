-- Prolong leases, never shortening one.
-- include jobs
--
-- KEYS[11…] the rest of each stream (see commit.lua)
-- ARGV[7] lease in ms, then of each lease: number of the stream, key, token
--
-- Answers the time and the numbers of the lost leases.

local answer = { now }
for from = 8, #ARGV, 3 do
  local id = call('HGET', KEYS[10 + tonumber(ARGV[from])], 'j' .. ARGV[from + 1])
  local job = held(id and tonumber(id), tonumber(ARGV[from + 2]))
  if job then
    if job.state == READY then
      leave(job)
      job.state = LEASED
      count_lease(job, 1)
    end
    job.expires, job.changed = math.max(job.expires, now + tonumber(ARGV[7])), true
    due[job.id] = job.expires
  else
    answer[#answer + 1] = (from - 5) / 3
  end
end
flush()
return answer
