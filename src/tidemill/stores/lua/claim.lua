-- Lease the next jobs in the order of the contract.
-- include jobs
--
-- ARGV[7] how many at most   ARGV[8] lease in ms   ARGV[9] owner   ARGV[10] only this run and its children, or empty
-- ARGV[11] 1: the caller waits if there is nothing   ARGV[12] number of queues (0: all), then the queues
-- then the number of bounded caps, then (cap, bound) of each
--
-- Answers the time, when to look again (-1: never by time alone), and of each lease token, number of expired leases,
-- ready time, expiry, fixed part.

local DUE_MAX = 2000 -- Due times that one call moves.
local PAGE = 16
local PASSED_MAX = 5000 -- Lanes over a cap that one call passes, and of those of one tenant in one queue.
local PASSED_IN_TURN_MAX = 1000
local FIRST_ONES = 100 -- Of these it begins with the first; behind them it continues where the last call has stopped.

local function answer_of(ids)
  local answer = { now, -1 }
  for _, id in ipairs(ids) do
    local job = get(id)
    if job and job.state == LEASED then
      for _, value in ipairs({ job.token, job.expired, job.ready, job.expires, job.fixed }) do
        answer[#answer + 1] = value
      end
    end
  end
  return answer
end

if answered then
  return answer_of(answered)
end

local limit, lease_ms, owner, tree = tonumber(ARGV[7]), tonumber(ARGV[8]), ARGV[9], ARGV[10]
local queues, bounds = {}, {}
local at = 12
for _ = 1, tonumber(ARGV[12]) do
  at = at + 1
  if not queues[ARGV[at]] then
    queues[ARGV[at]] = true
    queues[#queues + 1] = { name = ARGV[at] }
  end
end
at = at + 1
for _ = 1, tonumber(ARGV[at]) do
  bounds[ARGV[at + 1]] = tonumber(ARGV[at + 2])
  at = at + 2
end

-- What is due becomes ready.
local function move_due()
  local ids = call('ZRANGEBYSCORE', DUE, '-inf', now, 'LIMIT', 0, DUE_MAX)
  for from = 1, #ids, 500 do
    local part = { unpack(ids, from, math.min(from + 499, #ids)) }
    for index, stored in ipairs(call('HMGET', JOBS, unpack(part))) do
      local id = tonumber(part[index])
      if stored then
        local job = read(id, stored)
        jobs[id] = job
        displace(job)
        job.changed = true
        enter(job)
      else
        due[id] = false
      end
    end
  end
  flush_line()
end

-- Live leases under a cap, as they would be after the writes of this call.
local stored_live = {}
local function full(job)
  for _, cap in ipairs(job.caps) do
    -- A name may carry its own bound.
    local bound = bounds[cap] or tonumber(string.match(cap, '.<=(%d+)$'))
    if bound then
      if not stored_live[cap] then
        stored_live[cap] = tonumber(call('HGET', CAPS, cap) or 0)
      end
      if stored_live[cap] + (live[cap] or 0) >= bound then
        return true
      end
    end
  end
  return false
end

local taken, served_now = {}, {}
local function take(job, tenant)
  leave(job)
  job.changed = true
  lease(job, lease_ms, owner)
  served_now[tenant] = job.token
  taken[#taken + 1] = job.id
end

local function before(one, other)
  for index = 1, math.min(#one, #other) do
    local left, right = string.byte(one, index), string.byte(other, index)
    if left ~= right then
      return left < right
    end
  end
  return #one < #other
end

local function all_queues()
  local from = '-'
  while true do
    local member = call('ZRANGEBYLEX', TURNS, from, '+', 'LIMIT', 0, 1)[1]
    if not member then
      return
    end
    local name = split(member)
    queues[#queues + 1] = { name = name }
    from = '(' .. name .. '\255'
  end
end

-- The next turns of a queue. Tokens in them may be old ones: those are put right first.
local function more_turns(queue)
  while true do
    local members = call('ZRANGEBYLEX', TURNS, queue.from, '(' .. queue.name .. '\255', 'LIMIT', 0, PAGE)
    if #members == 0 then
      return false
    end
    local tenants, turns, right = {}, {}, true
    for index, member in ipairs(members) do
      tenants[index] = sub(member, #queue.name + 9)
    end
    for index, served in ipairs(call('HMGET', SERVED, unpack(tenants))) do
      served = tonumber(served or 0)
      if unpack_('>I8', members[index], #queue.name + 1) ~= served then
        local lane = queue.name .. tenants[index]
        call('ZREM', TURNS, members[index])
        call('ZADD', TURNS, 0, queue.name .. pack_('>I8', served) .. tenants[index])
        call('HSET', LISTED, lane, served)
        right = false
      end
      turns[index] = { member = members[index], tenant = tenants[index], served = served, lane = queue.name .. tenants[index] }
    end
    if right then
      queue.from = '(' .. members[#members]
      queue.turns, queue.at = turns, 1
      return true
    end
  end
end

-- Where the last call that has passed too many stopped in a lane of `line`: a field of `listed`.
local function cursor_of(lane)
  return '\0\1' .. lane
end

local function unlist(turn)
  call('ZREM', TURNS, turn.member)
  call('HDEL', LISTED, turn.lane, cursor_of(turn.lane))
end

-- The next members of the line of a turn, and their jobs.
local function next_page(turn)
  local size = math.min(limit, PAGE)
  if turn.passed > PAGE then
    size = 100
  end
  if turn.passed >= FIRST_ONES and not turn.continued then
    turn.continued = true
    local cursor = call('HGET', LISTED, cursor_of(turn.lane))
    if cursor and before(sub(turn.from, 2), cursor) then
      turn.from = '(' .. cursor
    end
  end
  turn.page, turn.at = call('ZRANGEBYLEX', LINE, turn.from, turn.to, 'LIMIT', 0, size), 1
  if #turn.page == 0 then
    if turn.continued then
      call('HDEL', LISTED, cursor_of(turn.lane))
    end
    return false
  end
  turn.from = '(' .. turn.page[#turn.page]
  local ids, unread = {}, {}
  for index, member in ipairs(turn.page) do
    local _, _, id = unpack_('>BI8I8', member, #turn.lane + 1)
    ids[index] = id
    if jobs[id] == nil then
      unread[#unread + 1] = id
    end
  end
  turn.ids = ids
  if #unread > 0 then
    for index, stored in ipairs(call('HMGET', JOBS, unpack(unread))) do
      jobs[unread[index]] = stored and read(unread[index], stored) or false
    end
  end
  return true
end

-- The next job of a turn, its rank and ready time, or nothing.
local passed, too_many = 0, {}
local function best(turn)
  if turn.from == nil then
    turn.from, turn.to = between(turn.lane)
    turn.page, turn.at, turn.passed = {}, 1, 0
  end
  while passed < PASSED_MAX and turn.passed < PASSED_IN_TURN_MAX do
    local member = turn.page[turn.at]
    if not member then
      if not next_page(turn) then
        return nil
      end
      member = turn.page[1]
    end
    local job = get(turn.ids[turn.at])
    if job and not full(job) then
      return job, 9 - job.priority, job.ready
    end
    turn.blocked, turn.last = true, member
    turn.at = turn.at + 1
    turn.passed, passed = turn.passed + 1, passed + 1
  end
  if turn.last then
    call('HSET', LISTED, cursor_of(turn.lane), turn.last)
    too_many[#too_many + 1] = turn
    turn.last = nil
  end
end

local function head(queue)
  while true do
    local turn = queue.turns and queue.turns[queue.at]
    if not turn then
      if queue.from and more_turns(queue) then
        turn = queue.turns[queue.at]
      else
        queue.from = nil
        turn = queue.again[1]
      end
    end
    if not turn then
      return nil
    end
    local job, rank, ready = best(turn)
    if job then
      return turn, job, rank, ready
    end
    if not turn.blocked and not turn.touched and passed < PASSED_MAX then
      unlist(turn)
    end
    if turn == queue.again[1] then
      table.remove(queue.again, 1)
    else
      queue.at = queue.at + 1
    end
  end
end

local function claim_by_turns()
  if #queues == 0 then
    all_queues()
  end
  local touched = {}
  for index, queue in ipairs(queues) do
    queue.from, queue.again, queue.at = '[' .. queue.name, {}, 1
    queue.first = more_turns(queue) and queue.turns[1].served or math.huge
    queue.place = (index + batch) % #queues
  end
  -- A call passes a bounded number of lanes: the tenant served longest ago comes before, else each queue in turn.
  table.sort(queues, function(one, other)
    if one.first ~= other.first then
      return one.first < other.first
    end
    return one.place < other.place
  end)
  while #taken < limit do
    local chosen, chosen_job, chosen_rank, chosen_ready
    for _, queue in ipairs(queues) do
      if not queue.known then
        queue.known = true
        queue.turn, queue.job, queue.rank, queue.ready = head(queue)
      end
      local turn = queue.turn
      if turn then
        local served = served_now[turn.tenant] or turn.served
        local first = not chosen
        if chosen and turn.tenant == chosen.tenant then
          local rank, ready, id = queue.rank, queue.ready, queue.job.id
          first = rank < chosen_rank
            or (rank == chosen_rank and (ready < chosen_ready or (ready == chosen_ready and id < chosen_job.id)))
        elseif chosen then
          local other = served_now[chosen.tenant] or chosen.served
          first = served < other or (served == other and before(turn.tenant, chosen.tenant))
        end
        if first then
          chosen, chosen_job, chosen_rank, chosen_ready = turn, queue.job, queue.rank, queue.ready
        end
      end
    end
    if not chosen then
      break
    end
    chosen.at = chosen.at + 1
    if chosen_job.digest ~= '' then
      -- The next job of its lane comes into the line.
      chosen.from = '(' .. chosen.page[chosen.at - 1]
      chosen.page, chosen.at = {}, 1
    end
    take(chosen_job, chosen.tenant)
    for _, queue in ipairs(queues) do
      local turn = queue.turn
      if turn and turn.tenant == chosen.tenant then
        if turn == queue.again[1] then
          table.remove(queue.again, 1)
        else
          queue.at = queue.at + 1
        end
        queue.again[#queue.again + 1] = turn
        if not turn.touched then
          turn.touched, turn.queue = true, queue.name
          touched[#touched + 1] = turn
        end
      end
      -- A cap may be full now.
      queue.known = not turn or (turn.tenant ~= chosen.tenant and #queue.job.caps == 0)
    end
  end
  flush_line()
  -- A tenant over whose lanes a call got no further had its turn.
  for _, turn in ipairs(too_many) do
    served_now[turn.tenant] = served_now[turn.tenant] or next_token()
    if not turn.touched then
      turn.touched, turn.queue = true, split(turn.lane)
      touched[#touched + 1] = turn
    end
  end
  for _, turn in ipairs(touched) do
    local from, to = between(turn.lane)
    if call('ZRANGEBYLEX', LINE, from, to, 'LIMIT', 0, 1)[1] then
      call('ZREM', TURNS, turn.member)
      call('ZADD', TURNS, 0, turn.queue .. pack_('>I8', served_now[turn.tenant]) .. turn.tenant)
      call('HSET', LISTED, turn.lane, served_now[turn.tenant])
    else
      unlist(turn)
    end
  end
end

-- Only jobs of a run and its children: every ready job is looked at.
local function claim_in_tree()
  if #queues == 0 then
    all_queues()
  end
  local tenants, by_tenant = {}, {}
  local function visit(job)
    local key = unpack_('>Hc0', job.fixed, job.stream_at)
    if key == tree or sub(key, 1, #tree + 1) == tree .. '.' then
      local _, tenant = split(job.lane)
      if not by_tenant[tenant] then
        by_tenant[tenant] = {}
        tenants[#tenants + 1] = { name = tenant, served = tonumber(call('HGET', SERVED, tenant) or 0), at = 1 }
      end
      table.insert(by_tenant[tenant], job)
    end
  end
  for _, queue in ipairs(queues) do
    local from, to = between(queue.name)
    for _, set in ipairs({ LINE, LANES }) do
      for _, member in ipairs(call('ZRANGEBYLEX', set, from, to)) do
        local cut = string.find(member, '\0\0', #queue.name + 1, true)
        local length = #member - cut - 1
        -- The line holds jobs with caps, too: those are visited in their lanes.
        if (set == LINE) == (length == 17) then
          local _, _, id = unpack_('>BI8I8', member, #member - 16)
          local job = get(id)
          if job then
            visit(job)
          end
        end
      end
    end
  end
  for _, found in pairs(by_tenant) do
    table.sort(found, function(one, other)
      if one.priority ~= other.priority then
        return one.priority > other.priority
      end
      if one.ready ~= other.ready then
        return one.ready < other.ready
      end
      return one.id < other.id
    end)
  end
  while #taken < limit do
    local chosen
    for _, tenant in ipairs(tenants) do
      local found = by_tenant[tenant.name]
      while found[tenant.at] and full(found[tenant.at]) do
        tenant.at = tenant.at + 1
      end
      if found[tenant.at] then
        local served = served_now[tenant.name] or tenant.served
        local other = chosen and (served_now[chosen.name] or chosen.served)
        if not chosen or served < other or (served == other and before(tenant.name, chosen.name)) then
          chosen = tenant
        end
      end
    end
    if not chosen then
      break
    end
    take(by_tenant[chosen.name][chosen.at], chosen.name)
    chosen.at = chosen.at + 1
  end
end

move_due()
entered, freed = false, false
if limit > 0 then
  if tree == '' then
    claim_by_turns()
  else
    claim_in_tree()
  end
end
for tenant, served in pairs(served_now) do
  call('HSET', SERVED, tenant, served)
end
flush(taken)
local answer = answer_of(taken)
if #taken == 0 then
  local first = call('ZRANGE', DUE, 0, 0, 'WITHSCORES')[2]
  answer[2] = first and tonumber(first) or -1
  if ARGV[11] == '1' then
    call('SET', WAITING, 1, 'PX', 120000)
  end
end
return answer
