-- shared/answers.lua: answers remembered by request id. Needs `now_s`.
-- Cost    O(log answers); a write removes at most 16 that are too old
local function recall(answers_key, times_key, request_id)
  local expire_s = redis.call('ZSCORE', times_key, request_id)
  if expire_s and tonumber(expire_s) > now_s then
    return redis.call('HGET', answers_key, request_id)
  end
  return false
end

local function memorise(answers_key, times_key, request_id, answer, ttl_s)
  for _, old in ipairs(redis.call('ZRANGEBYSCORE', times_key, '-inf', now_s, 'LIMIT', 0, 16)) do
    redis.call('ZREM', times_key, old)
    redis.call('HDEL', answers_key, old)
  end
  redis.call('HSET', answers_key, request_id, answer)
  redis.call('ZADD', times_key, string.format('%.6f', now_s + ttl_s), request_id)
  redis.call('EXPIRE', answers_key, math.ceil(ttl_s) + 1)
  redis.call('EXPIRE', times_key, math.ceil(ttl_s) + 1)
end
