// Package apitest starts the API server of the oldest Kubernetes that Holdfast supports, with an etcd and without nodes.
// `make test-oldest` compiles both and runs the tests that have the build tag oldest.
//
// Every test that calls Start has a server of its own, on ports of the loopback, which ends with the test process.
//
// Read and New validate objects of our group as the API server does, by the schemas and rules in config/crd, without
// a running server.
//
// The package is for tests only; nothing that is shipped may import it.
package apitest
