# two targets x two LUNs x two sessions on the shared per-core completion queues, all loaded at once
cat >"$WORK/many.yaml" <<Y
rdma: verbs
portals:
  - address: $ADDR:$PORT
targets:
  - name: $IQN
    luns:
      - store: ram:96MiB
      - store: ram:96MiB
  - name: ${IQN}b
    luns:
      - store: ram:96MiB
      - store: ram:96MiB
Y
start_iserd --config "$WORK/many.yaml"
login iser $IQN $ADDR 2; login iser ${IQN}b $ADDR 2
n=$(iscsiadm -m session | grep -c "$IQN"); [ "$n" = 4 ] || fail "$n sessions, want 4"
all_disks() { [ "$({ disks $IQN; disks ${IQN}b; } | wc -l)" = 8 ]; }
wait_for 20 "eight disks" all_disks
line=$(stats) || fail "no counters"
[ "$(stat_of sessions "$line")" = 4 ] && [ "$(stat_of iser_connections "$line")" = 4 ] || fail "the daemon counts $(stat_of sessions "$line") sessions on $(stat_of iser_connections "$line") iSER connections"
# A completion queue per core, however many sessions.
cqs=$(rdma_count cq) qps=$(rdma_count qp)
[ "$cqs" -ge 1 ] && [ "$cqs" -le "$(nproc)" ] || fail "$cqs completion queues on $(nproc) cores"
[ "$qps" -ge 4 ] || fail "$qps queue pairs for 4 sessions"
i=0 pids=
while read -r lun d; do
	# The two sessions of a LUN share its bytes: each works on a half of its own.
	fio_verify "$d" --size=24m --offset=$(((i % 2) * 48))m --iodepth=16 & pids="$pids $!"
	i=$((i + 1))
done < <({ disks $IQN | sort; disks ${IQN}b | sort; })
step "$i fio jobs"
for p in $pids; do wait "$p" || fail "fio on one of the disks: $(grep -lE 'err= *[1-9]' "$OUT"/fio-*.log | head -1)"; done
iscsiadm -m node -T $IQN -u >/dev/null; iscsiadm -m node -T ${IQN}b -u >/dev/null
note "$qps queue pairs on $cqs completion queues, $(nproc) cores"
stop_iserd
