# Finds a kernel with soft-RoCE and ib_iser. Sourced by scripts/lab.

# host_kernel: says what this host lacks, and fails, or is silent.
host_kernel() {
	[ "$(id -u)" = 0 ] || { echo "root"; return 1; }
	local m
	for m in rdma_rxe ib_iser; do
		[ -d "/sys/module/$m" ] || modprobe -nq "$m" 2>/dev/null || { echo "the $m module"; return 1; }
	done
}

find_kernel() { # [COMMAND]
	local k=${LAB_KERNEL:-} lack
	case $k in '' | host | uml | qemu) ;; *) echo "lab: LAB_KERNEL=$k: want host, uml or qemu" >&2; return 1 ;; esac
	if [ -z "$k" ] || [ "$k" = host ]; then
		if lack=$(host_kernel); then echo "host $(uname -r)"; return; fi
		[ -z "$k" ] || { echo "lab: this host lacks $lack" >&2; return 1; }
	fi
	# The UML runner has no terminal.
	if [ "$k" = uml ] || [ -z "$k" ] && [ -n "${LAB_UML:-}" ] && [ "${1:-}" != shell ]; then
		[ -x "${LAB_UML:-}" ] || { echo "lab: LAB_UML does not name a runner: '${LAB_UML:-}'" >&2; return 1; }
		[ "${1:-}" != shell ] || { echo "lab: the UML runner has no terminal; LAB_KERNEL=qemu has one" >&2; return 1; }
		echo "uml $LAB_UML"; return
	fi
	scripts/bootstrap qemu >&2
	if command -v qemu-system-x86_64 >/dev/null; then
		bash scripts/lab.d/qemu.sh prepare || return 1
		return
	fi
	echo "lab: no kernel with soft-RoCE: this host lacks $lack, LAB_UML is not set, and there is no qemu-system-x86_64" >&2
	return 1
}
