package iser

// fifo is a queue in a ring that grows when it must and keeps its size.
type fifo[T any] struct {
	ring []T
	head int
	n    int
}

func (q *fifo[T]) push(v T) {
	if q.n == len(q.ring) {
		ring := make([]T, max(8, 2*len(q.ring)))
		for i := range q.n {
			ring[i] = q.ring[(q.head+i)%len(q.ring)]
		}
		q.ring, q.head = ring, 0
	}
	q.ring[(q.head+q.n)%len(q.ring)] = v
	q.n++
}

// front is the oldest element; the queue must not be empty.
func (q *fifo[T]) front() *T { return &q.ring[q.head] }

func (q *fifo[T]) pop() T {
	var zero T
	v := q.ring[q.head]
	q.ring[q.head] = zero
	q.head = (q.head + 1) % len(q.ring)
	q.n--
	return v
}

func (q *fifo[T]) len() int { return q.n }

func (q *fifo[T]) clear() {
	clear(q.ring)
	q.head, q.n = 0, 0
}
