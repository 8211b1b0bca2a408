// Package e2e holds the end-to-end tests: Holdfast, installed by its chart into
// a real cluster, serves clients outside the cluster while tests inject faults. They have
// the build tag e2e, need root, and bring up a lab of their own (package lab) for
// each mode of kube-proxy in turn:
//
//	go test -tags e2e -timeout 45m ./e2e/...
//
// To run one test and keep the lab afterwards:
//
//	go test -tags e2e ./e2e -run 'TestE2E/nftables/NodeLoss' -keep
package e2e
