"""The nets, in torch. The service never imports them: it runs what export.py makes of them."""
