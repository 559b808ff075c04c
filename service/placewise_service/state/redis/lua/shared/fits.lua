-- shared/fits.lua: whether a hold fits on its node beside those already there; put after shared/holdings.lua. Needs
-- `capacities_key` to be set before use. `expected` are the jobs that a decision saw, {"node/gpu": {job ids}}; nil
-- without a decision. `own` are the jobs of the request.
-- Cost    O(tenants of the node)
local capacities_key, expected
local own, capacities, checked = {}, {}, {}
local POOLED = {'INSUFFICIENT_CPU', 'INSUFFICIENT_MEMORY', 'INSUFFICIENT_GPU_MEMORY', 'INSUFFICIENT_NETWORK'}

local function capacity_of(node)
  if capacities[node] == nil then
    local packed = redis.call('HGET', capacities_key, node)
    capacities[node] = packed and cmsgpack.unpack(packed) or false
  end
  return capacities[node]
end

-- Did the decision see the jobs that are on this GPU now, those of the request itself aside?
local function is_as_expected(node, gpu, tenants)
  local key = node .. '/' .. gpu
  if not expected or checked[key] then
    return true
  end
  checked[key] = true
  local seen = {}
  for _, job in ipairs(expected[key] or {}) do
    seen[job] = not own[job] or nil
  end
  local there = {}
  for i = 1, #tenants, 5 do
    local job = tenants[i + 1]
    if tenants[i] == gpu and not own[job] then
      if not seen[job] then
        return false
      end
      there[job] = true
    end
  end
  for job in pairs(seen) do
    if not there[job] then
      return false
    end
  end
  return true
end

-- The fast path of most GPUs: no tenant, and none expected.
local function is_empty(gpu, tenants)
  for i = 1, #tenants, 5 do
    if tenants[i] == gpu then
      return false
    end
  end
  return not expected or next(expected) == nil
end

local function gpu_conflict(hold, gpu, capacity, tenants)
  local memory = capacity[8][gpu]
  if not memory then
    return 'GPU_UNKNOWN'
  end
  if is_empty(gpu, tenants) then
    return memory < hold[9] and 'INSUFFICIENT_GPU_MEMORY' or nil
  end
  local count, fraction, is_exclusive, taken = 0, 0, false, 0
  for i = 1, #tenants, 5 do
    if tenants[i] == gpu then
      count = count + 1
      fraction = fraction + tenants[i + 2]
      taken = taken + tenants[i + 3]
      is_exclusive = is_exclusive or tenants[i + 4] == 0
    end
  end
  if count > 0 and (is_exclusive or hold[10] == 0) then
    return 'GPU_TAKEN'
  end
  if not is_as_expected(hold[1], gpu, tenants) then
    return 'GPU_TENANTS_CHANGED'
  end
  if count > 0 and (count >= capacity[2] or (hold[8] < 1 and 1 - fraction < hold[8])) then
    return 'GPU_SHARE_FULL'
  end
  if hold[9] > 0 and memory - taken < hold[9] then
    return 'INSUFFICIENT_GPU_MEMORY'
  end
  return nil
end

-- The reason if the node has too little left, else nil.
local function pooled_conflict(hold, capacity, record)
  for i = 1, 4 do
    if hold[i + 1] > 0 and record[i] + hold[i + 1] > capacity[i + 2] then
      return POOLED[i]
    end
  end
  for name, amount in pairs(hold[6]) do
    if name ~= NETWORK and (record[5][name] or 0) + amount > (capacity[7][name] or 0) then
      return 'INSUFFICIENT_EXTENDED'
    end
  end
  return nil
end
