"""A model behind HTTP: asked, taught and corrected by other programs, and by people on its page.

    service    a queue, one thread that learns from it, and what is published meanwhile
    keys       which requests were learned, by their Idempotency-Key: saved with the model
    recent     the last samples of the stream, for the page
    bodies     requests to samples: untrusted, bounded, checked
    guard      who may ask: tokens, hosts, origins
    metrics    what Prometheus reads
    openapi    the document of the interface, for the model that is served
    asking     routes that need nothing but what was published
    app        all routes
    page       the page, in one piece
    opening    the model that is served: that of a file, or a new one
    cluster    the same on a Ray cluster: one learner, and replicas that answer

Predictions come from what was published last and never wait for learning.
"""
