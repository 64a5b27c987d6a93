// Package target is the running system: it turns a configuration into stores, logical units, targets and portals, and
// wires the protocol engine to its transports. It is the one room that knows them all.
//
// A [System] is built whole before it listens: [New] opens every store and every RDMA device and fails with all that is
// wrong, [System.Listen] then opens the portals, so that no initiator ever meets a half-loaded target. [System.Shutdown]
// ends sessions, then closes stores, which put what they hold on the medium.
//
// Identity (serial number and NAA name of a logical unit) is part of the configuration. Where it is left out it is
// derived from the host, the target and the logical unit, so that it is stable across restarts and differs between
// hosts; [Config.Effective] fills it in, and what it prints can be carried to another host.
package target
