// Package k8s is the API server as Holdfast sees it: a source of objects, kept
// current by informers that kick, and the place where status, conditions and
// Events are written. It decides nothing: what stands in a status comes from its
// callers.
package k8s
