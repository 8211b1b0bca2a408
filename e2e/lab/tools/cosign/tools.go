//go:build tools

// Package tools pins cosign, which signs a release; the module is built, never imported.
package tools

import (
	_ "github.com/sigstore/cosign/v3/cmd/cosign"
)
