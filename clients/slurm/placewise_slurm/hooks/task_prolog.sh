#!/bin/bash
# Placewise for Slurm, TaskProlog: gives a task its share of a divisible job as environment variables.
# The bridge writes one file per job, lines "node unit scale predicted_seconds"; a job without one gets nothing.
shares="@SHARES_DIR@/$SLURM_JOB_ID"
[ -r "$shares" ] || exit 0
awk -v node="$SLURMD_NODENAME" -v rank="${SLURM_LOCALID:-0}" '
  { total += $3 }
  $1 == node && seen++ == rank { unit = $2; scale = $3; seconds = $4; found = 1 }
  END {
    if (!found) exit
    print "export PLACEWISE_SHARE_SCALE=" scale
    print "export PLACEWISE_SHARE_FRACTION=" scale / total
    print "export PLACEWISE_SHARE_UNIT=" unit
    print "export PLACEWISE_SHARE_SECONDS=" seconds
  }' "$shares"
{ printf 'share begin %s %s %s %s' "$SLURM_JOB_ID" "${SLURM_STEP_ID:-batch}" "$SLURMD_NODENAME" "${SLURM_LOCALID:-0}" \
  >/dev/udp/@POKE_HOST@/@POKE_PORT@; } 2>/dev/null
exit 0
