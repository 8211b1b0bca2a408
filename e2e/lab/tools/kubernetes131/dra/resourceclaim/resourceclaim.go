// Package resourceclaim stands in for the names of resource claims, which the node authorizer asks for.
package resourceclaim

import (
	"errors"

	v1 "k8s.io/api/core/v1"
)

// Name knows no claim: the API server does not serve resource.k8s.io.
func Name(*v1.Pod, *v1.PodResourceClaim) (name *string, mustCheckOwner bool, err error) {
	return nil, false, errors.New("resource.k8s.io is not served")
}
