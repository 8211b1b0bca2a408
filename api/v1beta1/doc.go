// Package v1beta1 holds the Go types of the custom resources in group holdfast.dev, version v1beta1. `make generate`
// writes the CRDs, their validation and docs/reference/api.md from these types and their comments.
//
// Kinds, fields, defaults and meanings are the same as in MetalLB where MetalLB has them, so its manifests work once
// their apiVersion is changed. FloatingIP is namespaced; all other kinds are cluster-scoped.
//
// CEL rules reject mistakes within one object, with a message that says how to fix them. Mistakes that depend on other
// objects are reported in the condition Valid.
//
//	scheme := runtime.NewScheme()
//	err := v1beta1.AddToScheme(scheme) // then any client of client-go can read and write the kinds
//
// The package is a Go module of its own. It must not import anything but k8s.io/apimachinery.
//
// +kubebuilder:object:generate=true
// +groupName=holdfast.dev
package v1beta1
