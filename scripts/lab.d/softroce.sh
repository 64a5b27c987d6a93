# RoCEv2 in user space against the kernel's soft-RoCE: the other end of the veth pair goes into a network namespace of its own.
# Sourced by lib.sh.
SR_NS=labsr SR_ADDR=192.168.77.2 SR_ADDR6=fd00:77::2
SR_PEER=labsp SR_PEER_ADDR=192.168.78.1 SR_PEERED=192.168.78.2

# softroce_up: a namespace with addresses, where no RDMA device is.
softroce_up() {
	ip netns add $SR_NS && ip link set labv1 netns $SR_NS || fail "cannot make the namespace $SR_NS"
	ip -n $SR_NS link set lo up
	ip -n $SR_NS addr add $SR_ADDR/24 dev labv1; ip -n $SR_NS -6 addr add $SR_ADDR6/64 dev labv1 nodad
	ip -n $SR_NS link set labv1 mtu 4200 up
	rdma_up
}
in_ns() { ip netns exec $SR_NS "$@"; }

# start_softroce ARGS...: iserd in the namespace, on RoCEv2 in user space.
start_softroce() {
	ISERD_IN="ip netns exec $SR_NS" ISERD_RDMA=softroce start_iserd --listen $SR_ADDR:$PORT --listen "[$SR_ADDR6]:$PORT" "$@"
	grep -q 'softroce' "$OUT/iserd.log" || fail "the daemon does not say that it runs on softroce"
}

# softroce_peer: a second namespace, for an initiator on softroce: the kernel's rxe has UDP port 4791 of the first one.
softroce_peer() {
	ip netns add $SR_PEER && ip link add labp0 netns $SR_PEER type veth peer name labp1 netns $SR_NS || fail "cannot make the namespace $SR_PEER"
	ip -n $SR_PEER link set lo up
	ip -n $SR_PEER addr add $SR_PEER_ADDR/24 dev labp0; ip -n $SR_NS addr add $SR_PEERED/24 dev labp1
	ip -n $SR_PEER link set labp0 mtu 4200 up; ip -n $SR_NS link set labp1 mtu 4200 up
}
in_peer() { ip netns exec $SR_PEER "$@"; }

# netem WORDS...: the same for both directions of every link there is; without words, none.
netem() {
	netem_on labv0 "" "$@"; netem_on labv1 $SR_NS "$@"
	if ip netns list | grep -q "^$SR_PEER"; then netem_on labp0 $SR_PEER "$@"; netem_on labp1 $SR_NS "$@"; fi
}
netem_on() { # DEVICE NAMESPACE WORDS...
	local dev=$1 tc=(tc); [ -z "$2" ] || tc=(ip netns exec "$2" tc); shift 2
	"${tc[@]}" qdisc del dev "$dev" root 2>/dev/null
	[ $# = 0 ] || "${tc[@]}" qdisc add dev "$dev" root netem "$@" || fail "tc takes no netem $*"
}
# netem_dropped NAMESPACE DEVICE: packets that it lost.
netem_dropped() { ip netns exec "$1" tc -s qdisc show dev "$2" | sed -nE 's/.*dropped ([0-9]+).*/\1/p' | head -1; }
