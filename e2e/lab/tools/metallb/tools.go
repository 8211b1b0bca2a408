//go:build tools

// Package tools pins the MetalLB that the test of the migration moves from; the module is built, never imported.
package tools

import (
	_ "go.universe.tf/metallb/controller"
	_ "go.universe.tf/metallb/speaker"
)
