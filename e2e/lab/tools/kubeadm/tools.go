//go:build tools

// Package tools pins kubeadm; the module is built, never imported.
package tools

import _ "k8s.io/kubernetes/cmd/kubeadm"
