// Package rdmaconform says what a provider of package rdma must do, as tests that run over any of them: the in-memory
// fabric, rdma-core, RoCEv2 in user space. [Run] runs all of [Tests].
//
// Where providers rightly differ, [Env] says which way this one goes, and a test demands exactly that. A test that does
// not apply is skipped with the reason.
package rdmaconform
