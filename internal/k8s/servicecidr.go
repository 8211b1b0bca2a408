package k8s

import (
	"context"
	"encoding/json"
	"fmt"
	"net/netip"
	"reflect"
	"sync"
	"sync/atomic"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/holdfast-lb/holdfast/internal/config"
)

const (
	// serviceCIDRsPath lists a kind that API servers have from Kubernetes 1.33 on.
	serviceCIDRsPath = "/apis/networking.k8s.io/v1/servicecidrs"
	// serviceCIDRsInterval is the time between two lists. The objects change only when an administrator adds a range. A
	// watch of a kind that the API server may lack would have to be repeated too, and would add the types to every
	// speaker.
	serviceCIDRsInterval = time.Minute
	// serviceCIDRsTime bounds one list.
	serviceCIDRsTime = 5 * time.Second
)

// serviceCIDRs are the ServiceCIDRs as last listed; none if the API server does not have the kind.
type serviceCIDRs struct {
	last atomic.Pointer[[]config.ServiceCIDR]
	// mu makes the lists sequential.
	mu sync.Mutex
	// failed reports whether the last list failed.
	failed bool
}

// all returns the ServiceCIDRs. It returns the same list as before if nothing changed.
func (s *serviceCIDRs) all() []config.ServiceCIDR {
	list := s.last.Load()
	if list != nil {
		return *list
	}
	return nil
}

// run lists the ServiceCIDRs until ctx is cancelled. An upgrade of the API server may add the kind meanwhile.
func (s *serviceCIDRs) run(ctx context.Context, k *Cluster) error {
	refresh := func(ctx context.Context) { s.refresh(ctx, k) }
	wait.UntilWithContext(ctx, refresh, serviceCIDRsInterval)
	return nil
}

// refresh lists the ServiceCIDRs once, and kicks if they changed. After an error the last list stays. The error is
// logged once, since ClusterIPs show the ranges too.
func (s *serviceCIDRs) refresh(ctx context.Context, k *Cluster) {
	s.mu.Lock()
	defer s.mu.Unlock()
	ctx, cancel := context.WithTimeout(ctx, serviceCIDRsTime)
	defer cancel()
	list, err := k.clients.serviceCIDRs(ctx)
	if err != nil {
		if !s.failed && ctx.Err() == nil {
			k.config.Log.Warn("cannot list ServiceCIDRs; pools withhold only the ClusterIPs that are in use",
				"error", err)
			s.failed = true
		}

		return
	}

	s.failed = false
	if !reflect.DeepEqual(s.all(), list) {
		s.last.Store(&list)
		k.config.Kick()
	}
}

// serviceCIDRs lists the ServiceCIDRs from the API server; none if it does not have the kind.
func (c Clients) serviceCIDRs(ctx context.Context) (out []config.ServiceCIDR, err error) {
	var list struct {
		Items []struct {
			Metadata struct {
				Name string `json:"name"`
			} `json:"metadata"`
			Spec struct {
				CIDRs []string `json:"cidrs"`
			} `json:"spec"`
		} `json:"items"`
	}
	text, err := c.kube.core.Get().AbsPath(serviceCIDRsPath).SetHeader("Accept", "application/json").Do(ctx).Raw()
	switch {
	case apierrors.IsNotFound(err):
		return nil, nil
	case err == nil:
		err = json.Unmarshal(text, &list)
	}
	if err != nil {
		return nil, fmt.Errorf("list ServiceCIDRs: %w", err)
	}

	for _, item := range list.Items {
		s := config.ServiceCIDR{Name: item.Metadata.Name}
		for _, cidr := range item.Spec.CIDRs {
			p, err := netip.ParsePrefix(cidr)
			if err == nil { // the API server has checked it
				s.CIDRs = append(s.CIDRs, p)
			}
		}

		out = append(out, s)
	}

	return out, nil
}
