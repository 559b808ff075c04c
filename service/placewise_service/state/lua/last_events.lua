-- last_events.lua: what clusters say of themselves, many in one command: their replies one by one cost readers more.
-- KEYS    meta of each cluster
-- Returns {life, id of the last event} of each; nil for both where there is no such cluster, or its meta is no hash
-- Cost    O(clusters)
local found = {}
for i, key in ipairs(KEYS) do
  local said = redis.pcall('HMGET', key, 'life', 'last')
  found[i] = said.err and {false, false} or said
end
return found
