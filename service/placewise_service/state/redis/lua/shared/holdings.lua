-- shared/holdings.lua: the holdings of jobs on nodes; put after shared/event.lua. Needs `used_key` to be set before use.
-- A hold (written by holdings.py): {node, cpu, memory, gpu_memory, network, {extended}, {gpus}, fraction, gpu_memory
-- per GPU, sharing 0|1}. The extended amount NETWORK marks a node of a job that spans several and wants their network
-- for itself. A used record: {cpu, memory, gpu_memory, network, {extended}, {gpu, job, fraction, memory,
-- sharing, ... five values per tenant}}. Amounts are multiples of 2^-20, so sums are exact.
-- Cost    O(tasks of the job + tenants of the nodes it is on), never the nodes or jobs of the cluster
local NETWORK = ''
local used_key
local used = {}

local function used_on(node)
  local record = used[node]
  if not record then
    local packed = redis.call('HGET', used_key, node)
    record = packed and cmsgpack.unpack(packed) or {0, 0, 0, 0, {}, {}}
    used[node] = record
  end
  return record
end

local function add(hold, sign)
  local record = used_on(hold[1])
  for i = 1, 4 do
    record[i] = record[i] + sign * hold[i + 1]
  end
  for name, amount in pairs(hold[6]) do
    local total = (record[5][name] or 0) + sign * amount
    record[5][name] = total ~= 0 and total or nil
  end
  return record[6]
end

local function take(hold, job)
  local tenants = add(hold, 1)
  for _, gpu in ipairs(hold[7]) do
    local n = #tenants
    tenants[n + 1], tenants[n + 2], tenants[n + 3] = gpu, job, hold[8]
    tenants[n + 4], tenants[n + 5] = hold[9], hold[10]
  end
end

local function give_back(hold, job)
  local tenants = add(hold, -1)
  for _, gpu in ipairs(hold[7]) do
    for i = 1, #tenants, 5 do
      if tenants[i] == gpu and tenants[i + 1] == job then
        for _ = 1, 5 do
          table.remove(tenants, i)
        end
        break
      end
    end
  end
end

local function give_back_all(packed_holds, job)
  for _, hold in ipairs(cmsgpack.unpack(packed_holds)) do
    give_back(hold, job)
  end
end

local function save_used()
  for node, record in pairs(used) do
    local is_idle = record[1] == 0 and record[2] == 0 and record[3] == 0 and record[4] == 0
    if is_idle and next(record[5]) == nil and #record[6] == 0 then
      redis.call('HDEL', used_key, node)
    else
      redis.call('HSET', used_key, node, cmsgpack.pack(record))
    end
  end
end

-- Takes a job out of its reservation's list.
local function leave_reservation(reservations_key, reservation, job)
  local packed = reservation ~= '' and redis.call('HGET', reservations_key, reservation)
  if not packed then
    return
  end
  local left = {}
  for _, other in ipairs(cmsgpack.unpack(packed)) do
    if other ~= job then
      left[#left + 1] = other
    end
  end
  if #left == 0 then
    redis.call('HDEL', reservations_key, reservation)
  else
    redis.call('HSET', reservations_key, reservation, cmsgpack.pack(left))
  end
end
