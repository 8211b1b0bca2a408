//go:build tools

// Package tools pins the lab's helm binaries; the module is built, never imported.
package tools

import (
	_ "helm.sh/helm/v4/cmd/helm"
)
