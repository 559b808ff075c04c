-- Placewise for Slurm: holds a job that asks for Placewise and pokes the bridge with one UDP datagram.
-- It runs inside slurmctld, which holds its locks meanwhile: nothing here waits for anything.
-- A job is only ever given priority 0 and an admin comment; every other job passes untouched, and is only counted, so
-- that the bridge knows the number of the next one.

local SETTINGS = {
  host = "@POKE_HOST@",
  port = @POKE_PORT@,
  partitions = { @PARTITIONS@ },
  -- false (dry run): jobs are only marked, so that the bridge logs its decisions.
  hold = @HOLD@,
  -- true: a job submitted while no bridge listens is held until one does; false: it is left to Slurm.
  hold_without_bridge = @HOLD_WITHOUT_BRIDGE@,
  -- true where every GPU has a type of its own: Slurm never lets a request change between typed and untyped, so the
  -- request of a held job waits in its admin comment and is set when the job is released.
  keeps_gres = @KEEPS_GRES@,
}

local HELD = "placewise:held"
local WATCHED = "placewise:watched"
local NO_VAL = 4294967294
local EXCLUSIVE = 0 -- of job_desc.shared

local udp = nil

local function connect()
  local ok, socket = pcall(require, "socket")
  if not ok then
    slurm.log_error("placewise: lua-socket is not installed; jobs are left to Slurm")
    return nil
  end
  local peer = socket.udp()
  peer:settimeout(0)
  peer:setpeername(SETTINGS.host, SETTINGS.port)
  return peer
end

-- Sends one datagram. On loopback the kernel shows at once whether somebody listens: the refusal is read back without
-- waiting. Returns false if nobody does.
local function poke(text)
  udp = udp or connect()
  if udp == nil then
    return false
  end
  local sent = udp:send(text)
  local _, problem = udp:receive()
  return sent ~= nil and problem ~= "connection refused"
end

local function default_partition(part_list)
  for name, part in pairs(part_list) do
    if part.flag_default ~= nil and part.flag_default ~= 0 then
      return name
    end
  end
  return nil
end

local function comment_says(job_desc, word)
  return job_desc.comment ~= nil and string.find(" " .. job_desc.comment .. " ", "[%s,;]" .. word .. "[%s,;]") ~= nil
end

local function asks_for_placewise(job_desc, part_list)
  if comment_says(job_desc, "placewise=off") then
    return false
  end
  if comment_says(job_desc, "placewise") or comment_says(job_desc, "placewise=on") then
    return true
  end
  local partition = job_desc.partition or default_partition(part_list)
  return partition ~= nil and SETTINGS.partitions[partition] == true
end

-- Features that every node needs, and no choices or counts of them.
local function needs_every_feature(job_desc)
  return job_desc.features == nil or string.find(job_desc.features, "^[%w_.:&-]*$") ~= nil
end

-- Shares of a GPU (shard, mps) and slices of one (MIG, "1g.10gb"): Slurm alone knows which GPU they are of.
local function asks_for_parts_of_gpus(job_desc)
  for _, asked in pairs({ job_desc.tres_per_node or "", job_desc.tres_per_job or "", job_desc.tres_per_task or "" }) do
    local words = ":" .. asked
    if string.find(words, "[:/,]shard") or string.find(words, "[:/,]mps") or string.find(words, "%dg%.%d+gb") then
      return true
    end
  end
  return false
end

-- Arrays share one record until they start, and parts of a heterogeneous job start together. Slurm places
-- a job itself if its user names nodes, excludes some, wants them alone or reserved, or gives a choice of partitions. A
-- job that is begun later, or held by its user, does not wait for us; nor does one that waits for another: Slurm does
-- not look at dependencies of a job that is held.
local function can_be_placed(job_desc)
  return job_desc.array_inx == nil
    and (job_desc.het_job_offset == nil or job_desc.het_job_offset == NO_VAL)
    and not asks_for_parts_of_gpus(job_desc)
    and job_desc.req_nodes == nil
    and job_desc.exc_nodes == nil
    and job_desc.dependency == nil
    and job_desc.reservation == nil
    and not string.find(job_desc.partition or "", ",", 1, true)
    and job_desc.shared ~= EXCLUSIVE
    and job_desc.tres_per_socket == nil
    and needs_every_feature(job_desc)
    and job_desc.priority ~= 0
    and (job_desc.immediate == nil or job_desc.immediate == 0)
    and (job_desc.begin_time == nil or job_desc.begin_time == 0 or job_desc.begin_time == NO_VAL)
end

-- Untyped GPU requests only: one that names a type is kept as its user wrote it.
local function set_gres_aside(job_desc)
  local asked = job_desc.tres_per_node
  if SETTINGS.keeps_gres and asked ~= nil and string.match(asked, "^gres[:/]gpu[:=]%d+$") then
    job_desc.admin_comment = HELD .. " gres=" .. asked
    job_desc.tres_per_node = ""
  end
end

function slurm_job_submit(job_desc, part_list, submit_uid)
  if not asks_for_placewise(job_desc, part_list) or not can_be_placed(job_desc) then
    poke("other")
    return slurm.SUCCESS
  end
  local is_heard = poke("submit")
  if not SETTINGS.hold then
    job_desc.admin_comment = WATCHED
  elseif is_heard or SETTINGS.hold_without_bridge then
    job_desc.priority = 0
    job_desc.admin_comment = HELD
    set_gres_aside(job_desc)
  end
  return slurm.SUCCESS
end

-- A job whose request was set aside gets it back with its release, by any user.
function slurm_job_modify(job_desc, job_rec, part_list, modify_uid)
  local aside = string.match(job_rec.admin_comment or "", "^" .. HELD .. " gres=(.+)$")
  local is_release = job_desc.priority ~= nil and job_desc.priority ~= 0 and job_desc.priority ~= NO_VAL
  if aside ~= nil and is_release and job_desc.tres_per_node == nil and job_rec.tres_per_node == nil then
    job_desc.tres_per_node = aside
  end
  return slurm.SUCCESS
end

return slurm.SUCCESS
