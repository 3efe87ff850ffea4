-- The jobs of a partition; read before every script that touches jobs.
--
-- KEYS[1]  meta     (see head.lua)
-- KEYS[2]  jobs     hash: job id → header and what never changes (see `pack` and `parse`)
-- KEYS[3]  due      zset: job id by the time at which it becomes ready or its lease expires
-- KEYS[4]  line     zset by bytes: lane, place (and digest): ready jobs without caps, and the first of each with caps
-- KEYS[5]  lanes    zset by bytes: lane, digest, place: ready jobs with caps
-- KEYS[6]  turns    zset by bytes: queue, token of the last claim, tenant: who has ready jobs in a queue
-- KEYS[7]  listed   hash: lane → the token under which it is in `turns`
-- KEYS[8]  served   hash: tenant → token of its last claim
-- KEYS[9]  caps     hash: cap → number of live leases
-- KEYS[10] waiting  string: there is a claim that waits for work
--
-- A lane is queue and tenant, each ended by two zero bytes. The digest stands for the caps of a job. A place is
-- 9 - priority, ready time, job id. Writes are collected and done at the end: an error changes nothing.

-- include head

local JOBS, DUE, LINE, LANES = KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local TURNS, LISTED, SERVED, CAPS, WAITING = KEYS[6], KEYS[7], KEYS[8], KEYS[9], KEYS[10]
local LATER, READY, LEASED = 0, 1, 2

local jobs, due, line, live, seen = {}, {}, {}, {}, {}
local freed, entered = false, false

-- state, ready time, token, expiry, number of expired leases, owner; then what never changes:
-- priority, lane, digest, caps, key of the stream, and the rest, which only clients read.
local function parse(job)
  if not job.lane then
    local count, at
    job.fixed = job.fixed or sub(job.stored, job.fixed_at)
    job.priority, job.lane, job.digest, count, at = unpack_('>BHc0Bc0B', job.fixed)
    job.caps = {}
    for index = 1, count do
      job.caps[index], at = unpack_('>Hc0', job.fixed, at)
    end
    job.stream_at = at
  end
  return job
end

-- Most jobs are settled under their lease and have no caps: nothing more of them is read.
local function header(id, stored)
  local job = { id = id, stored = stored }
  job.state, job.ready, job.token, job.expires, job.expired, job.owner, job.fixed_at = unpack_('>BI8I8I8I4Hc0', stored)
  return job
end

local function has_caps(job)
  if job.caps then
    return #job.caps > 0
  end
  local text, at = job.fixed or job.stored, job.fixed and 1 or job.fixed_at
  -- Behind the priority: the length of the lane, the lane, the length of the digest.
  return string.byte(text, at + 3 + unpack_('>H', text, at + 1)) > 0
end

local function read(id, stored)
  return parse(header(id, stored))
end

local function pack(job)
  return pack_('>BI8I8I8I4Hc0', job.state, job.ready, job.token, job.expires, job.expired, #job.owner, job.owner)
    .. (job.fixed or sub(job.stored, job.fixed_at))
end

local function get_header(id)
  local job = jobs[id]
  if job == nil then
    local stored = call('HGET', JOBS, id)
    job = stored and header(id, stored) or false
    jobs[id] = job
  end
  return job
end

local function get(id)
  local job = get_header(id)
  return job and parse(job)
end

local function place_of(job)
  return pack_('>BI8I8', 9 - job.priority, job.ready, job.id)
end

local function between(prefix)
  return '[' .. prefix, '(' .. prefix .. '\255'
end

local function first_two(lane)
  local from, to = between(lane)
  return unpack(call('ZRANGEBYLEX', LANES, from, to, 'LIMIT', 0, 2))
end

local function split(lane)
  local cut = string.find(lane, '\0\0', 1, true)
  return sub(lane, 1, cut + 1), sub(lane, cut + 2)
end

-- Give a queue's tenant a turn, if it has none there.
local function list(lane)
  if seen[lane] then
    return
  end
  seen[lane] = true
  if call('HEXISTS', LISTED, lane) == 0 then
    local queue, tenant = split(lane)
    local served = tonumber(call('HGET', SERVED, tenant) or 0)
    call('ZADD', TURNS, 0, queue .. pack_('>I8', served) .. tenant)
    call('HSET', LISTED, lane, served)
  end
end

local function enter(job)
  parse(job).state, entered = READY, true
  local place = place_of(job)
  if job.digest == '' then
    line[job.lane .. place] = true
  else
    local lane = job.lane .. job.digest
    call('ZADD', LANES, 0, lane .. place)
    local first, second = first_two(lane)
    if first == lane .. place then
      if second then
        call('ZREM', LINE, job.lane .. sub(second, #lane + 1) .. job.digest)
      end
      call('ZADD', LINE, 0, job.lane .. place .. job.digest)
    end
  end
  list(job.lane)
end

local function leave(job)
  local place = place_of(parse(job))
  if job.digest == '' then
    line[job.lane .. place] = false
  else
    local lane = job.lane .. job.digest
    local first, second = first_two(lane)
    call('ZREM', LANES, lane .. place)
    if first == lane .. place then
      call('ZREM', LINE, job.lane .. place .. job.digest)
      if second then
        call('ZADD', LINE, 0, job.lane .. sub(second, #lane + 1) .. job.digest)
      end
    end
  end
end

local function count_lease(job, change)
  if not has_caps(job) then
    return
  end
  for _, cap in ipairs(parse(job).caps) do
    live[cap] = (live[cap] or 0) + change
    freed = freed or change < 0
  end
end

-- Take a job from where it is: the line or the due times.
local function displace(job)
  if job.state == READY then
    leave(job)
  else
    due[job.id] = false
    if job.state == LEASED then
      count_lease(job, -1)
    end
  end
end

local function put(job)
  if job.ready > now then
    job.state, entered = LATER, true
    due[job.id] = job.ready
  else
    enter(job)
  end
end

-- Lease a job that is in no place.
local function lease(job, lease_ms, owner)
  if job.token > 0 then
    job.expired = job.expired + 1
  end
  job.token, job.owner, job.expires, job.state = next_token(), owner, now + lease_ms, LEASED
  due[job.id] = job.expires
  count_lease(job, 1)
end

local function remove(job)
  displace(job)
  jobs[job.id] = false
end

-- A job that is leased under this token, whatever the clock says.
local function held(id, given)
  local job = id and get_header(id)
  return job and given > 0 and job.token == given and job or nil
end

local function in_parts(command, key, values)
  for from = 1, #values, 1000 do
    call(command, key, unpack(values, from, math.min(from + 999, #values)))
  end
end

-- Members of a set by bytes: which are to be there and which not.
local function flush_members(key, members)
  local added, gone = {}, {}
  for member, there in pairs(members) do
    if there then
      added[#added + 1], added[#added + 2] = 0, member
    else
      gone[#gone + 1] = member
    end
  end
  in_parts('ZREM', key, gone)
  in_parts('ZADD', key, added)
end

local function flush_line()
  flush_members(LINE, line)
  line = {}
end

local function flush(answer)
  flush_line()
  local added, gone = {}, {}
  for id, score in pairs(due) do
    if score then
      added[#added + 1], added[#added + 2] = score, id
    else
      gone[#gone + 1] = id
    end
  end
  in_parts('ZREM', DUE, gone)
  in_parts('ZADD', DUE, added)
  added, gone = {}, {}
  for id, job in pairs(jobs) do
    if not job then
      gone[#gone + 1] = id
    elseif job.changed then
      added[#added + 1], added[#added + 2] = id, pack(job)
    end
  end
  in_parts('HDEL', JOBS, gone)
  in_parts('HSET', JOBS, added)
  for cap, change in pairs(live) do
    if change ~= 0 and call('HINCRBY', CAPS, cap, change) <= 0 then
      call('HDEL', CAPS, cap)
    end
  end
  if answer then
    remember(answer)
  end
  -- One hint for all who wait; who finds nothing says again that it waits.
  if (entered or freed) and call('DEL', WAITING) == 1 then
    call('PUBLISH', ARGV[3] .. 'work', ARGV[4])
  end
end
