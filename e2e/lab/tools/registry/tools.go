//go:build tools

// Package tools pins the registry that a release is tested with; the module is built, never imported.
package tools

import (
	_ "github.com/distribution/distribution/v3/cmd/registry"
)
