//go:build tools

// Package tools pins kind; the module is built, never imported.
package tools

import _ "sigs.k8s.io/kind"
