//go:build linux && cgo && !nordma

#include "shim_linux.h"
#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* Verbs return an errno, or -1 with errno set, or a negative errno, by function and by driver. */
static int neg(int rc)
{
	if (rc == 0)
		return 0;
	if (rc == -1)
		return errno ? -errno : -EIO;
	return rc > 0 ? -rc : rc;
}

/* For calls that return a pointer. */
static int nul(const void *p)
{
	if (p)
		return 0;
	return errno ? -errno : -EIO;
}

/* ---- hot ---------------------------------------------------------------- */

int iserd_poll(uintptr_t cq, int n, uintptr_t wcs)
{
	int rc = ibv_poll_cq((struct ibv_cq *)cq, n, (struct ibv_wc *)wcs);

	/* errno is not promised here, and -1 is what many drivers return */
	return rc == -1 ? -EIO : rc;
}

int iserd_arm(uintptr_t cq)
{
	return neg(ibv_req_notify_cq((struct ibv_cq *)cq, 0));
}

/*
 * How many requests a failed post took. A driver that names no request has taken all of them: rxe, when it could not ring
 * its doorbell. They complete, or go with the queue pair.
 */
static uint32_t taken(uintptr_t first, uintptr_t bad, size_t each, uint32_t n)
{
	if (bad < first || bad >= first + n * each)
		return n;
	return (uint32_t)((bad - first) / each);
}

void iserd_post_batch(uintptr_t batch)
{
	struct iserd_batch *b = (struct iserd_batch *)batch;
	struct ibv_recv_wr *r = b->recv;
	struct ibv_send_wr *s = b->send;
	struct ibv_sge *sge = b->sge;
	uint32_t doorbells = 0;

	for (uint32_t i = 0; i < b->nposts; i++) {
		struct iserd_post *p = &b->post[i];
		struct ibv_qp *qp = (struct ibv_qp *)(uintptr_t)p->qp;
		struct ibv_recv_wr *badr = r;
		struct ibv_send_wr *bads = s;

		p->recv_err = p->send_err = 0;
		p->recvs_done = p->sends_done = 0;
		for (uint32_t k = 0; k < p->recvs; k++) {
			r[k].sg_list = sge;
			r[k].next = &r[k + 1];
			sge += r[k].num_sge;
		}
		if (p->recvs) {
			r[p->recvs - 1].next = NULL;
			p->recv_err = neg(ibv_post_recv(qp, r, &badr));
			p->recvs_done = p->recv_err ? taken((uintptr_t)r, (uintptr_t)badr, sizeof(*r), p->recvs) : p->recvs;
			r += p->recvs;
			doorbells++;
		}
		for (uint32_t k = 0; k < p->sends; k++) {
			s[k].sg_list = sge;
			s[k].next = &s[k + 1];
			sge += s[k].num_sge;
		}
		if (p->sends && !p->recv_err) {
			s[p->sends - 1].next = NULL;
			p->send_err = neg(ibv_post_send(qp, s, &bads));
			p->sends_done = p->send_err ? taken((uintptr_t)s, (uintptr_t)bads, sizeof(*s), p->sends) : p->sends;
			doorbells++;
		}
		s += p->sends;
	}
	b->doorbells = doorbells;
}

int iserd_cq_events(uintptr_t channel, int max)
{
	struct ibv_comp_channel *ch = (struct ibv_comp_channel *)channel;
	struct ibv_cq *cq, *last = NULL;
	unsigned int run = 0;
	int n = 0, err = 0;
	void *ctx;

	while (n < max) {
		errno = 0;
		if (ibv_get_cq_event(ch, &cq, &ctx)) {
			/* a short read leaves errno alone: the device is gone */
			err = errno ? -errno : -EIO;
			break;
		}
		if (cq != last) {
			if (last)
				ibv_ack_cq_events(last, run);
			last = cq;
			run = 0;
		}
		run++;
		n++;
	}
	if (last)
		ibv_ack_cq_events(last, run);
	return n ? n : err;
}

/* ---- devices -------------------------------------------------------------- */

int iserd_devices(struct ibv_context ***list, int *n)
{
	struct ibv_device **probe;

	/* librdmacm says ENODEV for both "no device" and "no support"; libibverbs knows the difference */
	errno = 0;
	probe = ibv_get_device_list(n);
	if (!probe)
		return nul(NULL);
	ibv_free_device_list(probe);
	*list = NULL;
	if (!*n)
		return 0;
	errno = 0;
	*list = rdma_get_devices(n);
	return nul(*list);
}

/*
 * Gives back one reference that rdma_get_devices took. A list of one, because rdma_free_devices walks on with a freed
 * device when it removes one that has died.
 */
void iserd_put_device(struct ibv_context *ctx)
{
	struct ibv_context **list = calloc(2, sizeof(*list));

	if (!list)
		return; /* the device stays open; nothing worse */
	list[0] = ctx;
	rdma_free_devices(list);
}

int iserd_query_port(struct ibv_context *ctx, uint8_t port, struct ibv_port_attr *attr)
{
	memset(attr, 0, sizeof(*attr));
	return neg(ibv_query_port(ctx, port, attr));
}

int iserd_gids(struct ibv_context *ctx, struct ibv_gid_entry *out, int max)
{
	ssize_t n = ibv_query_gid_table(ctx, out, (size_t)max, 0);

	return (int)n;
}

int iserd_async_event(struct ibv_context *ctx, struct iserd_async *out)
{
	struct ibv_async_event ev;

	errno = 0;
	if (ibv_get_async_event(ctx, &ev))
		return errno ? -errno : -EIO;
	out->type = ev.event_type;
	out->qp_num = 0;
	out->port = 0;
	switch (ev.event_type) {
	case IBV_EVENT_QP_FATAL:
	case IBV_EVENT_QP_REQ_ERR:
	case IBV_EVENT_QP_ACCESS_ERR:
	case IBV_EVENT_COMM_EST:
	case IBV_EVENT_SQ_DRAINED:
	case IBV_EVENT_PATH_MIG:
	case IBV_EVENT_PATH_MIG_ERR:
	case IBV_EVENT_QP_LAST_WQE_REACHED:
		out->qp_num = ev.element.qp->qp_num;
		break;
	case IBV_EVENT_PORT_ACTIVE:
	case IBV_EVENT_PORT_ERR:
	case IBV_EVENT_LID_CHANGE:
	case IBV_EVENT_PKEY_CHANGE:
	case IBV_EVENT_SM_CHANGE:
	case IBV_EVENT_CLIENT_REREGISTER:
	case IBV_EVENT_GID_CHANGE:
		out->port = ev.element.port_num;
		break;
	default:
		break;
	}
	/* acknowledged here, or destroying the queue pair would wait for Go */
	ibv_ack_async_event(&ev);
	return 0;
}

/* ---- objects --------------------------------------------------------------- */

int iserd_alloc_pd(struct ibv_context *ctx, struct ibv_pd **out)
{
	errno = 0;
	*out = ibv_alloc_pd(ctx);
	return nul(*out);
}

int iserd_reg_mr(struct ibv_pd *pd, void *addr, size_t len, int access, struct ibv_mr **out)
{
	errno = 0;
	*out = ibv_reg_mr(pd, addr, len, access);
	return nul(*out);
}

int iserd_create_channel(struct ibv_context *ctx, struct ibv_comp_channel **out)
{
	errno = 0;
	*out = ibv_create_comp_channel(ctx);
	return nul(*out);
}

int iserd_create_cq(struct ibv_comp_channel *ch, int depth, int vector, struct ibv_cq **out)
{
	errno = 0;
	*out = ibv_create_cq(ch->context, depth, NULL, ch, vector);
	return nul(*out);
}

int iserd_resize_cq(struct ibv_cq *cq, int depth)
{
	errno = 0;
	return neg(ibv_resize_cq(cq, depth));
}

int iserd_create_qp(struct rdma_cm_id *id, struct ibv_pd *pd, struct ibv_qp_init_attr *attr)
{
	errno = 0;
	return neg(rdma_create_qp(id, pd, attr));
}

/* rdma_destroy_qp swallows the error. It has nothing else to destroy, since we give both queues. */
int iserd_destroy_qp(struct rdma_cm_id *id)
{
	int rc = neg(ibv_destroy_qp(id->qp));

	if (rc != -EBUSY)
		id->qp = NULL;
	return rc;
}

int iserd_qp_error(struct ibv_qp *qp)
{
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_ERR };

	return neg(ibv_modify_qp(qp, &attr, IBV_QP_STATE));
}

int iserd_qp_rnr_timer(struct ibv_qp *qp, uint8_t code)
{
	struct ibv_qp_attr attr = { .min_rnr_timer = code };

	return neg(ibv_modify_qp(qp, &attr, IBV_QP_MIN_RNR_TIMER));
}

/* ---- connections ------------------------------------------------------------ */

int iserd_cm_channel(struct rdma_event_channel **out)
{
	errno = 0;
	*out = rdma_create_event_channel();
	return nul(*out);
}

int iserd_cm_event(struct rdma_event_channel *ch, uint64_t new_token, struct iserd_cm_event *out)
{
	struct rdma_cm_event *ev;
	const struct rdma_conn_param *p;

	errno = 0;
	if (rdma_get_cm_event(ch, &ev))
		return errno ? -errno : -EIO;
	p = &ev->param.conn;
	out->type = ev->event;
	out->status = ev->status;
	out->listen_token = ev->listen_id ? (uint64_t)(uintptr_t)ev->listen_id->context : 0;
	/* the new identifier inherits the listener's context */
	if (ev->event == RDMA_CM_EVENT_CONNECT_REQUEST)
		ev->id->context = (void *)(uintptr_t)new_token;
	out->id = ev->id;
	out->token = (uint64_t)(uintptr_t)ev->id->context;
	out->responder_resources = p->responder_resources;
	out->initiator_depth = p->initiator_depth;
	out->flow_control = p->flow_control;
	out->retry_count = p->retry_count;
	out->rnr_retry_count = p->rnr_retry_count;
	out->qp_num = p->qp_num;
	out->private_len = p->private_data ? p->private_data_len : 0;
	if (out->private_len)
		memcpy(out->private_data, p->private_data, out->private_len);
	rdma_ack_cm_event(ev);
	return 0;
}

int iserd_cm_id(struct rdma_event_channel *ch, uint64_t token, struct rdma_cm_id **out)
{
	errno = 0;
	return neg(rdma_create_id(ch, out, (void *)(uintptr_t)token, RDMA_PS_TCP));
}

int iserd_cm_option(struct rdma_cm_id *id, int option)
{
	int on = 1;

	errno = 0;
	return neg(rdma_set_option(id, RDMA_OPTION_ID, option, &on, sizeof(on)));
}

int iserd_cm_bind(struct rdma_cm_id *id, void *addr)
{
	errno = 0;
	return neg(rdma_bind_addr(id, addr));
}

int iserd_cm_listen(struct rdma_cm_id *id, int backlog)
{
	errno = 0;
	return neg(rdma_listen(id, backlog));
}

int iserd_cm_resolve_addr(struct rdma_cm_id *id, void *src, void *dst, int ms)
{
	errno = 0;
	return neg(rdma_resolve_addr(id, src, dst, ms));
}

int iserd_cm_resolve_route(struct rdma_cm_id *id, int ms)
{
	errno = 0;
	return neg(rdma_resolve_route(id, ms));
}

int iserd_cm_connect(struct rdma_cm_id *id, struct rdma_conn_param *p, const void *priv)
{
	struct rdma_conn_param q = *p; /* the caller's is Go memory: no pointer may be stored there */

	q.private_data = priv;
	errno = 0;
	return neg(rdma_connect(id, &q));
}

int iserd_cm_accept(struct rdma_cm_id *id, struct rdma_conn_param *p, const void *priv)
{
	struct rdma_conn_param q = *p;

	q.private_data = priv;
	errno = 0;
	return neg(rdma_accept(id, &q));
}

int iserd_cm_reject(struct rdma_cm_id *id, const void *priv, uint8_t len)
{
	errno = 0;
	return neg(rdma_reject(id, priv, len));
}

int iserd_cm_disconnect(struct rdma_cm_id *id)
{
	errno = 0;
	return neg(rdma_disconnect(id));
}

int iserd_cm_notify(struct rdma_cm_id *id)
{
	errno = 0;
	return neg(rdma_notify(id, IBV_EVENT_COMM_EST));
}

int iserd_cm_destroy(struct rdma_cm_id *id)
{
	errno = 0;
	return neg(rdma_destroy_id(id));
}

void iserd_cm_addrs(struct rdma_cm_id *id, void *src, void *dst)
{
	memcpy(src, &id->route.addr.src_storage, sizeof(struct sockaddr_in6));
	memcpy(dst, &id->route.addr.dst_storage, sizeof(struct sockaddr_in6));
}
