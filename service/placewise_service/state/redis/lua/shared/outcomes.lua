-- shared/outcomes.lua: outcomes that count once, however often they are reported; put after shared/clock.lua.
-- Gives   is_first(key, id, kept_s): true for an id that is not remembered; it is for `kept_s` from now on
-- Cost    O(log outcomes)
local function is_first(key, id, kept_s)
  redis.call('ZREMRANGEBYSCORE', key, '-inf', string.format('%.6f', now_s))
  if redis.call('ZADD', key, 'NX', string.format('%.6f', now_s + kept_s), id) == 0 then
    return false
  end
  redis.call('EXPIRE', key, math.ceil(kept_s) + 1)
  return true
end
