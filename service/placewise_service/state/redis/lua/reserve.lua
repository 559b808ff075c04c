-- reserve.lua: holds every job's gang, or nothing. Includes: clock, event, holdings, fits, answers.
-- KEYS    1 meta, 2 events, 3 capacities, 4 used, 5 jobs, 6 holds, 7 expiring, 8 reservations, 9 progress, 10 ended,
--         11 answers, 12 answer_times
-- ARGV    1 retain_s, 2 ttl_s, 3 request id or "", 4 answer, 5 answer ttl_s, 6 {"node/gpu": {job ids}} expected on
--         shared GPUs, and under "" {node: {cpu, memory, gpu_memory, network, {job ids on its GPUs}}} expected before
--         a gang on nodes whose network it wants for itself (msgpack), 7 fingerprint or "", 8 outdated answer to replace, or "", then per job: id,
--         reservation id, record, holds (msgpack)
-- Returns {"held", epoch, version, expire time} | {"repeated", answer, expire time} | {"reused"}
--         | {"conflict", node, reason, and for JOB_RUNNING record and progress of each job that runs}
-- Cost    O(tasks + tenants on their nodes)
if ARGV[3] ~= '' then
  local standing = recall(KEYS[11], KEYS[12], ARGV[3], ARGV[7], ARGV[8])
  if standing then
    return standing
  end
end
if not exists then
  return {'conflict', '', 'CLUSTER_UNKNOWN'}
end
used_key = KEYS[4]
capacities_key, expected = KEYS[3], cmsgpack.unpack(ARGV[6])
local expire_s = string.format('%.6f', clock_s + tonumber(ARGV[2]))
local function conflict(hold)
  local capacity = capacity_of(hold[1])
  if not capacity then
    return 'NODE_UNKNOWN'
  end
  if capacity[1] ~= 1 then
    return 'NODE_NOT_READY'
  end
  local record = used_on(hold[1])
  local pooled = pooled_conflict(hold, capacity, record)
  if pooled then
    return pooled
  end
  for _, gpu in ipairs(hold[7]) do
    local reason = gpu_conflict(hold, gpu, capacity, record[6])
    if reason then
      return reason
    end
  end
  return nil
end

-- A gang on several nodes must not come where another has the network for itself.
local function network_conflict(holds)
  local spans = false
  for i = 2, #holds do
    spans = spans or holds[i][1] ~= holds[1][1]
  end
  for i = 1, spans and #holds or 0 do
    if used_on(holds[i][1])[5][NETWORK] then
      return holds[i][1]
    end
  end
  return nil
end

-- Is the node as the decision saw it before the gang? If not, it may have got another gang on several nodes since: no
-- record of a node tells.
local function is_as_seen(node, seen)
  local record, on_gpus, left = used_on(node), {}, 0
  for i = 1, 4 do
    if record[i] ~= seen[i] then
      return false
    end
  end
  for _, job in ipairs(seen[5]) do
    on_gpus[job], left = true, left + 1
  end
  for i = 2, #record[6], 5 do
    local job = record[6][i]
    if on_gpus[job] == nil then
      return false
    end
    left = left - (on_gpus[job] and 1 or 0)
    on_gpus[job] = false
  end
  return left == 0
end

local function changed_node(holds)
  for _, hold in ipairs(holds) do
    local seen = hold[6][NETWORK] and expected[''] and expected[''][hold[1]]
    if seen and not is_as_seen(hold[1], seen) then
      return hold[1]
    end
  end
  return nil
end

-- A job that is only reserved may be decided again: its reservation counts as free.
local running, before = {}, {}
for i = 9, #ARGV, 4 do
  local job = ARGV[i]
  own[job] = true
  local held = redis.call('HGET', KEYS[6], job)
  if held and redis.call('ZSCORE', KEYS[7], job) then
    before[job] = cmsgpack.unpack(held)
    give_back_all(before[job][2], job)
  elseif held then
    running[#running + 1] = redis.call('HGET', KEYS[5], job)
    running[#running + 1] = redis.call('HGET', KEYS[9], job)
  end
end
if #running > 0 then
  return {'conflict', '', 'JOB_RUNNING', running}
end
for i = 9, #ARGV, 4 do
  local holds = cmsgpack.unpack(ARGV[i + 3])
  local node = network_conflict(holds)
  if node then
    return {'conflict', node, 'NETWORK_TAKEN'}
  end
  node = changed_node(holds)
  if node then
    return {'conflict', node, 'NETWORK_CHANGED'}
  end
  for _, hold in ipairs(holds) do
    local reason = conflict(hold)
    if reason then
      return {'conflict', hold[1], reason}
    end
    take(hold, ARGV[i])
  end
end

-- Everything fits: from here on the script only writes.
local records, lives = {}, {}
for i = 9, #ARGV, 4 do
  local job, reservation, record, holds = ARGV[i], ARGV[i + 1], ARGV[i + 2], ARGV[i + 3]
  if before[job] then
    leave_reservation(KEYS[8], before[job][1], job)
    redis.call('HDEL', KEYS[9], job)
  end
  redis.call('ZREM', KEYS[10], job)
  redis.call('HSET', KEYS[5], job, record)
  redis.call('HSET', KEYS[6], job, cmsgpack.pack({reservation, holds}))
  redis.call('ZADD', KEYS[7], expire_s, job)
  if reservation ~= '' and redis.call('HSETNX', KEYS[8], reservation, cmsgpack.pack({job})) == 0 then
    local members = cmsgpack.unpack(redis.call('HGET', KEYS[8], reservation))
    members[#members + 1] = job
    redis.call('HSET', KEYS[8], reservation, cmsgpack.pack(members))
  end
  records[#records + 1] = record
  lives[#lives + 1] = {tonumber(expire_s), 0, 0, 0}
end
save_used()
local event = append('jobs', array_header(#records) .. table.concat(records), cmsgpack.pack(lives))
if ARGV[3] ~= '' then
  memorise(KEYS[11], KEYS[12], ARGV[3], ARGV[4], ARGV[7], tonumber(ARGV[5]), expire_s)
end
return {'held', epoch, event[1], expire_s}
