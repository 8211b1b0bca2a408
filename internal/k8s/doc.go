// Package k8s is Holdfast's access to the API server: a source of objects, kept
// current by informers that kick, and the writer of status, conditions and
// Events. It decides nothing: the content of a status comes from its callers.
package k8s
