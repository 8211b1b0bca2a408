module k8s.io/dynamic-resource-allocation

go 1.26.0

require (
	k8s.io/api v0.31.14
	k8s.io/apiserver v0.31.14
)
