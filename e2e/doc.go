// Package e2e holds the end-to-end tests: Holdfast, installed by its chart into
// a real cluster, is used from outside it and broken on purpose. They have the
// build tag e2e, need root, and bring up a lab of their own (package lab) for
// each mode of kube-proxy in turn:
//
//	go test -tags e2e ./e2e/...
//
// One test on a lab that stays up afterwards, to work on it:
//
//	go test -tags e2e ./e2e -run 'TestE2E/nftables/NodeLoss' -keep
package e2e
