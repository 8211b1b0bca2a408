//go:build tools

// Package tools pins the API server of the oldest Kubernetes that Holdfast supports; the module is built, never
// imported.
package tools

import _ "k8s.io/kubernetes/cmd/kube-apiserver"
