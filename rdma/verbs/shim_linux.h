/*
 * What Go cannot or should not do itself: calls that are inline functions or macros in the headers of rdma-core, errno
 * taken in the call it belongs to, and the two hot calls that do a batch in one crossing. Nothing here keeps a pointer
 * beyond the call, and nothing blocks.
 */
#ifndef ISERD_VERBS_SHIM_H
#define ISERD_VERBS_SHIM_H

#include <infiniband/verbs.h>
#include <rdma/rdma_cma.h>
#include <stdint.h>

/* Room of one batch. Post falls back to several crossings beyond it. */
enum { ISERD_MAX_POSTS = 256, ISERD_MAX_RECVS = 1024, ISERD_MAX_SENDS = 1024, ISERD_MAX_SGES = 4096 };
enum { ISERD_MAX_POLL = 128 };

/* One queue pair of a batch: its next `recvs` receives and `sends` sends in the arrays, in order. */
struct iserd_post {
	uint64_t qp;
	uint32_t recvs, sends;
	uint32_t recvs_done, sends_done;
	int32_t recv_err, send_err;
};

/* The next and sg_list pointers are set by C, the rest by Go. */
struct iserd_batch {
	uint32_t nposts;
	uint32_t doorbells;
	struct iserd_post post[ISERD_MAX_POSTS];
	struct ibv_recv_wr recv[ISERD_MAX_RECVS];
	struct ibv_send_wr send[ISERD_MAX_SENDS];
	struct ibv_sge sge[ISERD_MAX_SGES];
};

struct iserd_async {
	uint32_t type, qp_num;
	int32_t port;
};

struct iserd_cm_event {
	struct rdma_cm_id *id;
	uint64_t token, listen_token;
	uint32_t type;
	int32_t status;
	uint32_t qp_num;
	uint8_t responder_resources, initiator_depth, flow_control, retry_count, rnr_retry_count, private_len;
	uint8_t private_data[256];
};

/* All of these return 0 or a count, or a negative errno. */
int iserd_poll(uintptr_t cq, int n, uintptr_t wcs);
void iserd_post_batch(uintptr_t batch);
int iserd_arm(uintptr_t cq);
int iserd_cq_events(uintptr_t channel, int max);

int iserd_devices(struct ibv_context ***list, int *n);
void iserd_put_device(struct ibv_context *ctx);
int iserd_query_port(struct ibv_context *ctx, uint8_t port, struct ibv_port_attr *attr);
int iserd_gids(struct ibv_context *ctx, struct ibv_gid_entry *out, int max);
int iserd_async_event(struct ibv_context *ctx, struct iserd_async *out);

int iserd_alloc_pd(struct ibv_context *ctx, struct ibv_pd **out);
int iserd_reg_mr(struct ibv_pd *pd, void *addr, size_t len, int access, struct ibv_mr **out);
int iserd_create_channel(struct ibv_context *ctx, struct ibv_comp_channel **out);
int iserd_create_cq(struct ibv_comp_channel *ch, int depth, int vector, struct ibv_cq **out);
int iserd_resize_cq(struct ibv_cq *cq, int depth);

int iserd_create_qp(struct rdma_cm_id *id, struct ibv_pd *pd, struct ibv_qp_init_attr *attr);
int iserd_destroy_qp(struct rdma_cm_id *id);
int iserd_qp_error(struct ibv_qp *qp);
int iserd_qp_rnr_timer(struct ibv_qp *qp, uint8_t code);

int iserd_cm_channel(struct rdma_event_channel **out);
int iserd_cm_event(struct rdma_event_channel *ch, uint64_t new_token, struct iserd_cm_event *out);
int iserd_cm_id(struct rdma_event_channel *ch, uint64_t token, struct rdma_cm_id **out);
int iserd_cm_option(struct rdma_cm_id *id, int option);
int iserd_cm_bind(struct rdma_cm_id *id, void *addr);
int iserd_cm_listen(struct rdma_cm_id *id, int backlog);
int iserd_cm_resolve_addr(struct rdma_cm_id *id, void *src, void *dst, int ms);
int iserd_cm_resolve_route(struct rdma_cm_id *id, int ms);
int iserd_cm_connect(struct rdma_cm_id *id, struct rdma_conn_param *p, const void *priv);
int iserd_cm_accept(struct rdma_cm_id *id, struct rdma_conn_param *p, const void *priv);
int iserd_cm_reject(struct rdma_cm_id *id, const void *priv, uint8_t len);
int iserd_cm_disconnect(struct rdma_cm_id *id);
int iserd_cm_notify(struct rdma_cm_id *id);
int iserd_cm_destroy(struct rdma_cm_id *id);
void iserd_cm_addrs(struct rdma_cm_id *id, void *src, void *dst);

#endif
