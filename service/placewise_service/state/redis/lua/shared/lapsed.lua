-- shared/lapsed.lua: expired reservations, for hosts that start a job late; put after shared/event.lua.
-- Needs `lapsed_key` and `lapsed_times_key` to be set before use.
-- lapsed: job id -> {epoch, reservation id, record, holds}, and under "" the bytes of all. lapsed_times: job ids by the
-- time they are forgotten. Both keys outlive the cluster, so an epoch may find records of an earlier one: hence `epoch`.
-- Cost    O(log jobs) each
local lapsed_key, lapsed_times_key

local function drop_lapsed(job)
  local size = redis.call('HSTRLEN', lapsed_key, job)
  if size > 0 then
    redis.call('HINCRBY', lapsed_key, '', -size)
    redis.call('HDEL', lapsed_key, job)
    redis.call('ZREM', lapsed_times_key, job)
  end
end

local function keep_lapsed(job, reservation, record, holds, ttl_s)
  drop_lapsed(job)
  local packed = cmsgpack.pack({epoch, reservation, record, holds})
  redis.call('HSET', lapsed_key, job, packed)
  redis.call('HINCRBY', lapsed_key, '', #packed)
  redis.call('ZADD', lapsed_times_key, string.format('%.6f', now_s + ttl_s), job)
end

-- Forgets expired records, then the oldest until all are within so many bytes.
local function trim_lapsed(ttl_s, most_bytes)
  for _, job in ipairs(redis.call('ZRANGEBYSCORE', lapsed_times_key, '-inf', string.format('%.6f', now_s))) do
    drop_lapsed(job)
  end
  while tonumber(redis.call('HGET', lapsed_key, '') or '0') > most_bytes do
    drop_lapsed(redis.call('ZRANGE', lapsed_times_key, 0, 0)[1])
  end
  redis.call('EXPIRE', lapsed_key, math.ceil(ttl_s) + 1)
  redis.call('EXPIRE', lapsed_times_key, math.ceil(ttl_s) + 1)
end

-- Removes and returns {epoch, reservation id, record, holds}; nil if unknown.
local function take_lapsed(job)
  local until_s = redis.call('ZSCORE', lapsed_times_key, job)
  local packed = until_s and tonumber(until_s) > now_s and redis.call('HGET', lapsed_key, job)
  local was = packed and cmsgpack.unpack(packed)
  if not was or was[1] ~= epoch then
    return nil
  end
  drop_lapsed(job)
  return was
end
