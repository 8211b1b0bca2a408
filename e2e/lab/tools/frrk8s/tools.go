//go:build tools

// Package tools pins the FRR-K8s that holds MetalLB's BGP sessions in the test of the migration; the module is built,
// never imported.
package tools

import (
	_ "github.com/metallb/frr-k8s/cmd/frr-k8s-controller"
	_ "github.com/metallb/frr-k8s/cmd/metrics"
	_ "github.com/metallb/frr-k8s/cmd/status"
	_ "github.com/metallb/frr-k8s/cmd/statuscleaner"
)
